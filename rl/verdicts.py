"""Verdicts of a run, kept as they come: what a referee has judged is not judged again when a step is repeated or a run goes on.

So a run that is killed in the middle of a step loses no measurement, and the step that is done again is paid as it was.
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
#: What rewards, hacks and reports read of a verdict. Raw samples stay with the referee.
_KEPT = ("schema", "verdict", "reason", "findings", "task", "candidate", "environment", "shapes", "summary")

#: Words that say something of the file alone. All others may be another machine's fault: a kernel that one card's shared memory
#: has no room for, or that is too slow for the deadline there.
_ANYWHERE = FAULTS | {"cheating", "contract_violation"}

Key = tuple[str, str]


def elsewhere(verdict: Verdict, machine: str | None) -> str:
    """The type of machine that a verdict is from, where it is another one and that matters; else ""."""
    known = type_of(verdict.environment)
    return "" if machine in (None, known) or verdict.verdict in _ANYWHERE else known


@dataclass(frozen=True)
class Kept:
    """A verdict.

    Attributes:
        verdict: the referee's.
        confirmed: whether a speed in it that was suspicious has been measured again.
        opinions: what judges said of it, which holds when the candidate is written again and its speed is no jump any more; None
            where none was asked, or one did not answer.
    """

    verdict: Verdict
    confirmed: bool
    opinions: tuple[Opinion, ...] | None = None


class VerdictJournal:
    """Verdicts by (task's digest, candidate's fingerprint); a context manager.

    Args:
        path: the file.
        machine: verdicts of another type of machine are not given, see `elsewhere`; None gives all.
        harness: version of the referee; verdicts of others are not given, since it times or forbids otherwise. None gives all.

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
        self._journal.records.clear()  # each verdict stands in memory once

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
        """What is kept of a candidate."""
        return self._found.get(key)

    def put(self, key: Key, found: Kept) -> None:
        """Keep a verdict, in place of an earlier one of the same candidate.

        Raises:
            JournalError: the disk is full; what was kept before is.
        """
        verdict = as_json(found.verdict)
        kept = {name: verdict[name] for name in _KEPT}
        record = {"task": key[0], "form": key[1], "confirmed": found.confirmed, "verdict": kept}
        if found.opinions is not None:
            record["opinions"] = [asdict(one) for one in found.opinions]
        self._add(record)

    def drop(self, key: Key) -> None:
        """Forget a verdict that was not confirmed."""
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
