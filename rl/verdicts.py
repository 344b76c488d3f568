"""Verdicts of a run, stored as they arrive: a repeated step or a resumed run does not judge the same candidate again.

A run killed in the middle of a step therefore loses no measurement, and the repeated step gets the same rewards.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.fingerprint import type_of
from evaluator.verdict import HARNESS_VERSION, Verdict, as_json, from_json
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


def harness_of(url: str | None) -> str | None:
    """The version of this machine's referees; None for a service, whose version may differ."""
    return None if url else HARNESS_VERSION


class VerdictJournal(Journal):
    """Verdicts by (task's digest, candidate's fingerprint).

    Args:
        path: the file.
        machine: machine type; verdicts from others are ignored, see `elsewhere`. None accepts all.
        harness: referee version; verdicts of other versions are ignored, because timing or rules may differ. None accepts all.
        look: the shapes of a first look, in words; verdicts of other first looks are ignored, confirmed ones are of all shapes.

    Raises:
        JournalError: see `rl.journal.Journal`.
    """

    def __init__(
        self, path: Path, machine: str | None = None, harness: str | None = None, look: str = ""
    ) -> None:
        self._machine = machine
        self._harness = harness
        self._look = look
        super().__init__(path, _KIND)

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
        if self._look and not found.confirmed:
            record["look"] = self._look
        if found.opinions is not None:
            record["opinions"] = [asdict(one) for one in found.opinions]
        self.append([record])

    def drop(self, key: Key) -> None:
        """Remove a verdict that was not confirmed."""
        if key in self._found:
            self.append([{"task": key[0], "form": key[1], "confirmed": False, "verdict": None}])

    def _add(self, records: list[dict[str, Any]]) -> None:
        super()._add(records)
        self.records.clear()  # keeps each verdict in memory only once; this journal is never rewound

    def _forget(self) -> None:
        self._found: dict[Key, Kept] = {}

    def _note(self, record: dict[str, Any]) -> None:
        key = (str(record["task"]), str(record["form"]))
        verdict = None if record["verdict"] is None else from_json(record["verdict"])
        looked = record["confirmed"] or record.get("look", "") == self._look
        if verdict is None or not looked or not self._fits(verdict):
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
