"""Verdicts of a run, stored as they arrive: a repeated step or a resumed run does not judge the same candidate again.

A run killed in the middle of a step therefore loses no measurement, and the repeated step gets the same rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.fingerprint import type_of
from evaluator.verdict import Verdict, as_json, from_json
from rl.hacks import Opinion
from rl.journal import Journal
from rl.reward import FAULTS

_KIND = "kernelwright.verdicts/1"
#: Verdict fields that rewards, hacks and reports read. Raw samples are not stored.
_KEPT = ("schema", "verdict", "reason", "findings", "task", "candidate", "environment", "shapes", "summary")

#: Verdicts that do not depend on the machine. All others may: a kernel may not fit into one GPU's shared memory, or may be too slow
#: for the deadline there.
_ANYWHERE = FAULTS | {"cheating", "contract_violation"}

Key = tuple[str, str]


def elsewhere(verdict: Verdict, machine: str | None) -> str:
    """The machine type of a verdict if it differs from `machine` and that matters; else ""."""
    known = type_of(verdict.environment)
    return "" if machine in (None, known) or verdict.verdict in _ANYWHERE else known


@dataclass(frozen=True)
class Kept:
    """A stored verdict.

    Attributes:
        verdict: the referee's verdict.
        confirmed: whether its suspicious speed was measured again.
        opinions: the judges' opinions, which also apply when the model writes the candidate again and its speed is no longer a
            jump; None if no judge was asked or one did not answer.
    """

    verdict: Verdict
    confirmed: bool
    opinions: tuple[Opinion, ...] | None = None


class VerdictJournal:
    """Verdicts by (task's digest, candidate's fingerprint); a context manager.

    Args:
        path: the file.
        machine: machine type; verdicts from others are ignored, see `elsewhere`. None accepts all.
        harness: referee version; verdicts of other versions are ignored, because timing or rules may differ. None accepts all.

    Raises:
        JournalError: see `rl.journal.Journal`.
    """

    def __init__(self, path: Path, machine: str | None = None, harness: str | None = None) -> None:
        self._journal = Journal(path, _KIND)
        self._machine = machine
        self._harness = harness
        self._found: dict[Key, Kept] = {}
        for record in self._journal.records:
            self._take(record)
        self._journal.records.clear()  # keeps each verdict in memory only once

    def __enter__(self) -> VerdictJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._found)

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def get(self, key: Key) -> Kept | None:
        """Return the stored verdict on a candidate, or None."""
        return self._found.get(key)

    def put(self, key: Key, found: Kept) -> None:
        """Store a verdict, replacing an earlier one on the same candidate.

        Raises:
            JournalError: the disk is full; stored verdicts are unchanged.
        """
        verdict = as_json(found.verdict)
        kept = {name: verdict[name] for name in _KEPT}
        record = {"task": key[0], "form": key[1], "confirmed": found.confirmed, "verdict": kept}
        if found.opinions is not None:
            record["opinions"] = [asdict(one) for one in found.opinions]
        self._add(record)

    def drop(self, key: Key) -> None:
        """Remove a verdict that was not confirmed."""
        if key in self._found:
            self._add({"task": key[0], "form": key[1], "confirmed": False, "verdict": None})

    def _add(self, record: dict[str, Any]) -> None:
        self._journal.append([record])
        self._journal.records.clear()
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        key = (str(record["task"]), str(record["form"]))
        verdict = None if record["verdict"] is None else from_json(record["verdict"])
        if verdict is None or not self._fits(verdict):
            self._found.pop(key, None)
        else:
            said = record.get("opinions")
            opinions = (
                None if said is None else tuple(Opinion(one["word"], one["why"], one["kind"]) for one in said)
            )
            self._found[key] = Kept(verdict, bool(record["confirmed"]), opinions)

    def _fits(self, verdict: Verdict) -> bool:
        environment = verdict.environment
        if self._harness is not None and environment.get("harness", self._harness) != self._harness:
            return False
        if verdict.verdict == "accepted":
            return self._machine in (None, type_of(environment))
        return not elsewhere(verdict, self._machine)
