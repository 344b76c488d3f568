"""The exemplar database: earlier successes and their speedups; prompts show exemplars with different speedups.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.prompts.markers import holds_markers
from agent.strategy.exemplars import LONGEST_SHOWN_CHARACTERS, apart
from agent.strategy.novelty import fingerprint
from rl.config import ExemplarPart
from rl.journal import Journal

_KIND = "kernelwright.exemplars/1"


@dataclass(frozen=True)
class Success:
    """A candidate that the referee accepted and timed.

    Attributes:
        task: hex SHA-256 of the task's source.
        machine: machine type, from `evaluator.fingerprint.type_of`.
        source: the candidate file; untrusted.
        speedup: geometric mean over visible shapes.
    """

    task: str
    machine: str
    source: str
    speedup: float


@dataclass(frozen=True)
class Exemplar:
    """One program for a task, with all its measurements on one machine type.

    Attributes:
        form: digest of its normal form, which identifies it.
        source: its text, as first seen; untrusted.
        speedup: geometric mean of its measurements.
    """

    form: str
    source: str
    speedup: float


@dataclass(frozen=True)
class Draw:
    """The exemplars of a prompt in ascending order of speedup, and the snapshot they were drawn from."""

    shown: tuple[Exemplar, ...]
    snapshot: int


class ExemplarDatabase(Journal):
    """All successes of a run, or of several runs that share the file.

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
        super().__init__(path, _KIND, write=write)

    @property
    def snapshot(self) -> int:
        """The number of the newest snapshot, to be saved in a checkpoint; `rewind` goes back to one."""
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
        added = [{"form": form, **asdict(one)} for form, one in kept]
        self.append([{"snapshot": self.snapshot + 1, "added": added}])
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

    def record(self, task: str, machine: str) -> float | None:
        """The highest speedup of a task, or None without exemplars."""
        members = self.members(task, machine)
        return members[0].speedup if members else None

    def draw(self, seed: int, task: str, machine: str, snapshot: int | None = None) -> Draw:
        """Draw the exemplars for a task's prompt, see the module docstring."""
        settings = self._settings
        until = self.snapshot if snapshot is None else snapshot
        # Python hashes string seeds with SHA-512, which gives the same stream in every process.
        generator = random.Random(f"{seed}/{task}/{machine}/{until}")  # noqa: S311
        members = self.members(task, machine, until)
        if settings.draw == "none" or generator.random() < settings.dropout:
            return Draw((), until)
        speedups = [one.speedup for one in members]
        places = apart(speedups, generator, settings.count, tau=settings.tau, width=settings.bucket)
        shown = sorted((members[place] for place in places), key=lambda one: (one.speedup, one.form))
        return Draw(tuple(shown), until)

    def _kept(self, task: str, machine: str, until: int) -> list[Exemplar]:
        first: dict[str, str] = {}
        speedups: dict[str, list[float]] = {}
        for form, one in (member for added in self._snapshots[:until] for member in added):
            if (one.task, one.machine) == (task, machine):
                first.setdefault(form, one.source)
                speedups.setdefault(form, []).append(one.speedup)
        every = [
            Exemplar(form, source, statistics.geometric_mean(speedups[form]))
            for form, source in first.items()
        ]
        every.sort(key=lambda one: (-one.speedup, one.form))
        best, others = every[: self._settings.best], every[self._settings.best :]
        lots = {one.form: hashlib.sha256(f"{task}/{one.form}".encode()).digest() for one in others}
        sample = sorted(others, key=lambda one: lots[one.form])[: self._settings.reservoir]
        return sorted([*best, *sample], key=lambda one: (-one.speedup, one.form))

    def _forget(self) -> None:
        # Successes added by each snapshot, from 1; snapshot 0 is the empty database.
        self._snapshots: list[list[tuple[str, Success]]] = []
        self._members: dict[tuple[str, str], tuple[int, list[Exemplar]]] = {}

    def _note(self, record: dict[str, Any]) -> None:
        if record["snapshot"] != self.snapshot + 1:
            raise ValueError(f"snapshot {record['snapshot']} follows {self.snapshot}")
        self._snapshots.append(
            [
                (one["form"], Success(one["task"], one["machine"], one["source"], one["speedup"]))
                for one in record["added"]
            ]
        )
