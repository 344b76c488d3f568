"""The growing database of hacks: stores candidates that the referee caught and recognizes similar ones.

The referee is the gate; this is a second check of the candidates that pass it. A candidate with the same normal form as a caught one
gets the same reward as the caught one. A candidate that is more similar to a caught file than to any cleared file is not paid for
speed until it is cleared. Similarity is the share of common token triples of the normal forms (`agent.strategy.novelty`), so names,
comments and layout do not matter. An optional judge (`rl.llm_judge`) is called when a reward jumps.

    python -m rl.hacks known.journal kernel.py --by NAME --why "confirmed in fresh processes"

clears a file in a database that later runs start from (`hacks.begin_with`).

Each of these checks can only lower a reward: `Opinion` has no verdict that raises one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from agent.strategy.novelty import marks
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict
from rl.config import HackPart, RewardPart
from rl.errors import RLError
from rl.journal import Journal
from rl.reward import Score, lowered, shaping, unpaid

_KIND = "kernelwright.hacks/1"
_SHOWN_CHARACTERS = 300
#: Longer sources are not stored, to keep one file from filling the database.
_MOST_CHARACTERS = 60_000
#: Warnings that reveal a hack in an accepted candidate: its own kernels do not compute the answer.
_TELLING = frozenset({"decoy_kernel"})


@dataclass(frozen=True)
class Case:
    """A file in the database.

    Attributes:
        kind: caught, or cleared (reviewed and found honest).
        rule: rule of the referee's finding, or the reviewer who cleared it.
        evidence: explanation; contains untrusted text.
        source: the file; untrusted.
    """

    kind: Literal["caught", "cleared"]
    rule: str
    evidence: str
    source: str


@dataclass(frozen=True)
class Hit:
    """A case similar to a candidate; `share` is 1 for the same normal form."""

    case: Case
    share: float


@dataclass(frozen=True)
class Opinion:
    """An opinion on a candidate: "caught" pays the floor, "suspect" pays no speed, "nothing" changes nothing.

    Attributes:
        why: explanation; may quote untrusted text.
        kind: what caught it, in the project's own words only, for public tables.
    """

    word: Literal["nothing", "suspect", "caught"]
    why: str = ""
    kind: str = ""


#: Called when a reward jumps, with the task, the candidate's source, its speedup and the most similar cases. If it raises, there is no opinion.
Reviewer = Callable[[TaskSource, str, float, Sequence[Hit]], Opinion]


class HackDatabase(Journal):
    """Cases searchable by similarity.

    Args:
        path: the file.
        settings: the similarity threshold.
        write: False for ranks that only follow the writing rank.

    Raises:
        JournalError: see `rl.journal.Journal`.
    """

    def __init__(self, path: Path, settings: HackPart | None = None, *, write: bool = True) -> None:
        self._settings = settings or HackPart()
        super().__init__(path, _KIND, write=write)

    def __len__(self) -> int:
        return len(self._cases)

    @property
    def position(self) -> int:
        """The number of records in use, to be saved in a checkpoint."""
        return len(self.records)

    def learn(self, source: str, verdict: Verdict) -> bool:
        """Add a candidate if the referee caught it; return whether a case was added."""
        found = caught(verdict)
        return found is not None and self._learn(Case("caught", *found, source))

    def clear(self, source: str, by: str, why: str) -> bool:
        """Record that a file was reviewed and is honest, for example confirmed by the referee in fresh processes.

        A file that was caught stays caught.
        """
        return self._learn(Case("cleared", by, why[:_SHOWN_CHARACTERS], source))

    def take(self, other: HackDatabase) -> int:
        """Add the cases of another run's database; return how many were added."""
        return sum(self._learn(case) for case in list(other._cases.values()))

    def alike(self, source: str, most: int = 3) -> list[Hit]:
        """The most similar cases, best first; each shares a token triple or the normal form."""
        mine, triples = marks(source)
        hits = []
        for form, case in self._cases.items():
            common = len(triples & self._triples[form])
            share = common / (len(triples) + len(self._triples[form]) - common or 1)
            hits.append(Hit(case, 1.0 if form == mine else min(share, 0.9999)))
        return sorted((hit for hit in hits if hit.share), key=lambda hit: -hit.share)[:most]

    def opinion(self, source: str) -> Opinion:
        """Opinion on a candidate that the referee accepted, by its similarity to known cases."""
        hits = self.alike(source, len(self._cases))
        bad = next((hit for hit in hits if hit.case.kind == "caught"), None)
        good = next((hit for hit in hits if hit.case.kind == "cleared"), None)
        if bad is None or bad.share < self._settings.alike:
            return Opinion("nothing")
        if bad.share == 1:
            return Opinion(
                "caught",
                f"says the same as a file that was caught ({bad.case.rule})",
                "the same as a caught file",
            )
        # Most of a hack is an honest kernel: a candidate closer to an honest file is not suspect.
        if good is not None and good.share >= bad.share:
            return Opinion("nothing")
        return Opinion(
            "suspect", f"{bad.share:.0%} like a file that was caught ({bad.case.rule})", "like a caught file"
        )

    def _learn(self, case: Case) -> bool:
        if len(case.source) > _MOST_CHARACTERS:
            return False
        known = self._cases.get(marks(case.source)[0])
        if known is not None and (known.kind == "caught" or case.kind == "cleared"):
            return False
        self.append([asdict(case)])
        return True

    def _forget(self) -> None:
        # By normal form; a file that was cleared and is caught later takes the place of its case.
        self._cases: dict[str, Case] = {}
        self._triples: dict[str, frozenset[int]] = {}

    def _note(self, record: dict[str, Any]) -> None:
        if record["kind"] not in ("caught", "cleared"):
            raise ValueError(record["kind"])
        case = Case(record["kind"], str(record["rule"]), str(record["evidence"]), str(record["source"]))
        form, triples = marks(case.source)
        self._cases[form], self._triples[form] = case, triples


def caught(verdict: Verdict) -> tuple[str, str] | None:
    """Rule and evidence of the referee's finding if it is a hack, else None."""
    for one in verdict.findings:
        if one.severity == "cheat" or (one.severity == "warning" and one.rule in _TELLING):
            return one.rule[:_SHOWN_CHARACTERS], one.evidence[:_SHOWN_CHARACTERS]
    if verdict.verdict == "cheating":
        return "cheating", verdict.reason[:_SHOWN_CHARACTERS]
    return None


def doubted(scored: Score, opinions: Iterable[Opinion], settings: RewardPart) -> Score:
    """A score after the opinions of databases and judges; never higher than before."""
    limits = {"caught": shaping(settings).floor, "suspect": unpaid(settings), "nothing": None}
    for one in opinions:
        scored = lowered(scored, limits[one.word], one.why)
    return scored


def main(
    database: Annotated[Path, typer.Argument(help="A database of hacks; made where there is none.")],
    file: Annotated[Path, typer.Argument(help="A candidate that was looked at and is honest.")],
    by: Annotated[str, typer.Option(help="Who looked at it.")],
    why: Annotated[str, typer.Option(help="Why it is honest.")],
) -> None:
    """Clear a file, so that what is more like it than like anything caught is paid again. What was caught stays caught."""
    console = Console(stderr=True)
    try:
        with HackDatabase(database) as known:
            new = known.clear(file.read_text(encoding="utf-8"), by, why)
    except (RLError, OSError, UnicodeDecodeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    said = "is cleared now" if new else "was caught or cleared before, or is too long: nothing has changed"
    console.print(f"{file} {said}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if new else 1)


if __name__ == "__main__":
    typer.run(main)
