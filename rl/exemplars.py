"""The exemplar database: earlier successes with their scores, from which prompts show two that differ.

Kept apart per task and type of machine, since a speedup means something only there. It grows by *snapshots*: what a step found is
added as one record when the step ends, so a step that is killed leaves nothing behind and is done again with the same draws. A
draw is a function of (seed, task, type of machine, snapshot) and nothing else: every rank and every resumed run draws alike.

The same program measured again (the same normal form, see `agent.strategy.normal_form`) is one exemplar with the geometric mean of
its measurements: keeping the best of several would prefer lucky timings.
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
        machine: type of machine, as `evaluator.fingerprint.type_of` says it.
        source: the candidate file; untrusted.
        speedup: geometric mean over visible shapes.
        origin: who proposed it, as in `agent.candidates`.
        shapes: rows of the verdict at visible shapes, as :func:`measured` keeps them; none where they are not known.
    """

    task: str
    machine: str
    source: str
    speedup: float
    origin: str = "policy"
    shapes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


def measured(verdict: Verdict) -> tuple[dict[str, Any], ...]:
    """What a portfolio needs of a verdict: its timed rows at visible shapes, without their raw samples."""
    rows = as_json(replace(verdict, shapes=tuple(visible_rows(verdict))))["shapes"]
    return tuple({name: row[name] for name in _OF_A_ROW} for row in rows)


@dataclass(frozen=True)
class Exemplar:
    """One program of a task, with everything that was measured of it on one type of machine.

    Attributes:
        form: digest of its normal form, by which it is known.
        source: its text, as first seen.
        speedup: geometric mean of its measurements.
        measurements: how many.
        snapshot: with which it came.
        origin: who proposed it first.
        shapes: of its first measurement, as in :class:`Success`.
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
    """An exemplar and the score that a prompt gives it: its own, except where scores are shuffled on purpose."""

    exemplar: Exemplar
    speedup: float


@dataclass(frozen=True)
class Draw:
    """What a prompt shows, from the lower to the higher score, and the snapshot it was drawn from."""

    shown: tuple[Shown, ...]
    snapshot: int


class ExemplarDatabase:
    """All successes of a run, or of several that share the file; a context manager.

    Args:
        path: the file.
        settings: capacity and draw.
        write: False for ranks that follow the one that writes.
        special_tokens: of the tokenizer; a source that holds one is not taken.

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
        # Per snapshot, from 1, what came with it; snapshot 0 is the empty database.
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
        """The number of the newest snapshot; it belongs into a checkpoint."""
        return len(self._snapshots)

    def advance(self, successes: Iterable[Success]) -> int:
        """End a step: add what it found as one snapshot, also if that is nothing.

        What cannot be shown (too long, or with markers of prompts in it) is left out.

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
        """Go back to a checkpoint's snapshot: what came later is made again, or was another run's.

        Raises:
            ValueError: there is no such snapshot.
        """
        self._journal.rewind(snapshot)
        self._forget_after(snapshot)

    def follow(self) -> int:
        """Take in what the writing process has added since; the newest snapshot's number."""
        self._forget_after(self._journal.follow())
        self._apply(self._journal.records[self.snapshot :])
        return self.snapshot

    def members(self, task: str, machine: str, snapshot: int | None = None) -> list[Exemplar]:
        """Exemplars of a task on a type of machine, the fastest first, as of a snapshot (the newest by default).

        The fastest are kept, and of all others a sample that does not depend on the order in which they came.
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
        """The highest speedup of a task, None without any."""
        members = self.members(task, machine, snapshot)
        return members[0].speedup if members else None

    def portfolio(
        self, task: str, machine: str, form: str = "", snapshot: int | None = None
    ) -> list[Verdict]:
        """What was measured of a task's exemplars shape by shape, as `rl.reward.marginal_gain` reads it.

        Without the program `form` itself: who writes it again is paid for it as before, and not for a gain over its own earlier time.
        """
        members = self.members(task, machine, snapshot)
        return [
            from_json({"verdict": "accepted", "shapes": one.shapes})
            for one in members
            if one.shapes and one.form != form
        ]

    def draw(self, seed: int, task: str, machine: str, snapshot: int | None = None) -> Draw:
        """What to show in a prompt for a task, see the module."""
        settings = self._settings
        until = self.snapshot if snapshot is None else snapshot
        # A text as a seed goes through SHA-512, so that it means the same in every process.
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
