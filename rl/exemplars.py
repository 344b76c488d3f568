"""The exemplar database: earlier successes and their scores; prompts show exemplars with different scores.

Exemplars are kept per task and machine type, because a speedup is only meaningful within those. The database grows by *snapshots*:
the successes of a step are added as one record when the step ends, so a killed step leaves nothing behind and is repeated with the
same draws. A draw depends only on (seed, task, machine type, snapshot): every rank and every resumed run draws the same exemplars.

Measurements of the same program (the same normal form, see `agent.strategy.normal_form`) are merged into one exemplar with their
geometric mean: keeping the best of several would favor lucky timings.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.portfolio.clusters import visible_rows
from agent.prompts.markers import holds_markers
from agent.strategy.exemplars import LONGEST_SHOWN_CHARACTERS, apart
from agent.strategy.novelty import fingerprint
from evaluator.verdict import Verdict, as_json, from_json
from rl.config import ExemplarPart
from rl.errors import JournalError
from rl.journal import Journal

_KIND = "kernelwright.exemplars/1"
_OF_A_ROW = ("dims", "split", "timed", "weight", "speedup", "ci95", "pairs", "baseline_us")


@dataclass(frozen=True)
class Success:
    """A candidate that the referee accepted and timed.

    Attributes:
        task: hex SHA-256 of the task's source.
        machine: machine type, from `evaluator.fingerprint.type_of`.
        source: the candidate file; untrusted.
        speedup: geometric mean over visible shapes.
        origin: what proposed it, as in `agent.candidates`.
        shapes: the verdict's rows at visible shapes, as returned by :func:`measured`; empty if unknown.
    """

    task: str
    machine: str
    source: str
    speedup: float
    origin: str = "policy"
    shapes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


def measured(verdict: Verdict) -> tuple[dict[str, Any], ...]:
    """Return the verdict rows that a portfolio needs: those timed at visible shapes, without raw samples."""
    rows = as_json(replace(verdict, shapes=tuple(visible_rows(verdict))))["shapes"]
    return tuple({name: row[name] for name in _OF_A_ROW} for row in rows)


@dataclass(frozen=True)
class Exemplar:
    """One program for a task, with all its measurements on one machine type.

    Attributes:
        form: digest of its normal form, which identifies it.
        source: its text, as first seen.
        speedup: geometric mean of its measurements.
        measurements: number of measurements.
        snapshot: the snapshot that added it.
        origin: what first proposed it.
        shapes: rows of its first measurement, as in :class:`Success`.
    """

    form: str
    source: str
    speedup: float
    measurements: int
    snapshot: int
    origin: str
    shapes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


@dataclass(frozen=True)
class Shown:
    """An exemplar and the score shown with it: its own, unless the draw shuffles scores on purpose."""

    exemplar: Exemplar
    speedup: float


@dataclass(frozen=True)
class Draw:
    """The exemplars of a prompt in ascending order of score, and the snapshot they were drawn from."""

    shown: tuple[Shown, ...]
    snapshot: int


class ExemplarDatabase:
    """All successes of a run, or of several runs that share the file; a context manager.

    Args:
        path: the file.
        settings: capacity and draw method.
        write: False for ranks that only follow the writing rank.
        special_tokens: the tokenizer's special tokens; sources that contain one are not added.

    Raises:
        JournalError: see `rl.journal.Journal`.
    """

    def __init__(
        self,
        path: Path,
        settings: ExemplarPart | None = None,
        *,
        write: bool = True,
        special_tokens: Iterable[str] = (),
    ) -> None:
        self._settings = settings or ExemplarPart()
        self._special_tokens = tuple(special_tokens)
        self._journal = Journal(path, _KIND, write=write)
        # Successes added by each snapshot, from 1; snapshot 0 is the empty database.
        self._snapshots: list[list[tuple[str, Success]]] = []
        self._members: dict[tuple[str, str], tuple[int, list[Exemplar]]] = {}
        try:
            self._apply(self._journal.records)
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> ExemplarDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    @property
    def snapshot(self) -> int:
        """The number of the newest snapshot, to be saved in a checkpoint."""
        return len(self._snapshots)

    def advance(self, successes: Iterable[Success]) -> int:
        """End a step: add its successes as one snapshot, even if there are none.

        Sources that cannot be shown (too long, or containing prompt markers) are left out.

        Returns:
            The new snapshot's number.

        Raises:
            ValueError: a speedup is not a positive number; nothing is added.
            JournalError: the disk is full; nothing is added.
        """
        kept = []
        for one in successes:
            if not (math.isfinite(one.speedup) and one.speedup > 0):
                raise ValueError(f"a success has the speedup {one.speedup}")
            if len(one.source) <= LONGEST_SHOWN_CHARACTERS and not holds_markers(
                one.source, self._special_tokens
            ):
                kept.append((fingerprint(one.source), one))
        record = {
            "snapshot": self.snapshot + 1,
            "added": [{"form": form, **asdict(one)} for form, one in kept],
        }
        self._journal.append([record])
        self._snapshots.append(kept)
        return self.snapshot

    def rewind(self, snapshot: int) -> None:
        """Go back to a checkpoint's snapshot; later ones will be made again, or belong to another run.

        Raises:
            ValueError: there is no such snapshot.
        """
        self._journal.rewind(snapshot)
        self._forget_after(snapshot)

    def follow(self) -> int:
        """Load the snapshots that the writing process has added; return the newest one's number."""
        self._forget_after(self._journal.follow())
        self._apply(self._journal.records[self.snapshot :])
        return self.snapshot

    def members(self, task: str, machine: str, snapshot: int | None = None) -> list[Exemplar]:
        """Exemplars of a task on a machine type, fastest first, as of a snapshot (by default the newest).

        Keeps the fastest ones and a sample of the others that does not depend on their order of arrival.
        """
        until = self.snapshot if snapshot is None else snapshot
        if not 0 <= until <= self.snapshot:
            raise ValueError(f"there is no snapshot {until}; the newest is {self.snapshot}")
        known = self._members.get((task, machine))
        if known is None or known[0] != until:
            known = (until, self._kept(task, machine, until))
            self._members[task, machine] = known
        return list(known[1])

    def record(self, task: str, machine: str, snapshot: int | None = None) -> float | None:
        """The highest speedup of a task, or None without exemplars."""
        members = self.members(task, machine, snapshot)
        return members[0].speedup if members else None

    def portfolio(
        self, task: str, machine: str, form: str = "", snapshot: int | None = None
    ) -> list[Verdict]:
        """Per-shape measurements of a task's exemplars, as `rl.reward.marginal_gain` reads them.

        Leaves out the program `form` itself: a repeated program gets the same reward as before, not its gain over its own earlier time.
        """
        members = self.members(task, machine, snapshot)
        return [
            from_json({"verdict": "accepted", "shapes": one.shapes})
            for one in members
            if one.shapes and one.form != form
        ]

    def draw(self, seed: int, task: str, machine: str, snapshot: int | None = None) -> Draw:
        """Draw the exemplars for a task's prompt, see the module docstring."""
        settings = self._settings
        until = self.snapshot if snapshot is None else snapshot
        # Python hashes string seeds with SHA-512, which gives the same stream in every process.
        generator = random.Random(f"{seed}/{task}/{machine}/{until}")  # noqa: S311
        members = self.members(task, machine, until)
        if settings.draw == "none" or generator.random() < settings.dropout:
            return Draw((), until)
        scores = [one.speedup for one in members]
        if settings.draw == "random":
            places = generator.sample(range(len(members)), min(settings.count, len(members)))
        else:
            places = apart(scores, generator, settings.count, tau=settings.tau, width=settings.bucket)
        if settings.draw == "shuffled":
            generator.shuffle(scores)
        shown = [Shown(members[place], scores[place]) for place in places]
        return Draw(tuple(sorted(shown, key=lambda one: (one.speedup, one.exemplar.form))), until)

    def _kept(self, task: str, machine: str, until: int) -> list[Exemplar]:
        first: dict[str, tuple[int, Success]] = {}
        speedups: dict[str, list[float]] = {}
        for number, added in enumerate(self._snapshots[:until], 1):
            for form, one in added:
                if (one.task, one.machine) == (task, machine):
                    first.setdefault(form, (number, one))
                    speedups.setdefault(form, []).append(one.speedup)
        every = [
            Exemplar(
                form,
                one.source,
                statistics.geometric_mean(speedups[form]),
                len(speedups[form]),
                number,
                one.origin,
                one.shapes,
            )
            for form, (number, one) in first.items()
        ]
        every.sort(key=lambda one: (-one.speedup, one.form))
        best, others = every[: self._settings.best], every[self._settings.best :]
        lots = {one.form: hashlib.sha256(f"{task}/{one.form}".encode()).digest() for one in others}
        sample = sorted(others, key=lambda one: lots[one.form])[: self._settings.reservoir]
        return sorted([*best, *sample], key=lambda one: (-one.speedup, one.form))

    def _apply(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            try:
                if record["snapshot"] != self.snapshot + 1:
                    raise ValueError(f"snapshot {record['snapshot']} follows {self.snapshot}")
                added = [(str(one.pop("form")), _success(one)) for one in map(dict, record["added"])]
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(
                    f"{self._journal.path} holds a record that makes no sense: {error}"
                ) from None
            self._snapshots.append(added)

    def _forget_after(self, snapshot: int) -> None:
        del self._snapshots[snapshot:]
        self._members.clear()


def _success(record: Mapping[str, Any]) -> Success:
    return Success(**{**record, "shapes": tuple(map(dict, record.get("shapes", ())))})
