"""The durable state of a job, which can be killed at any time and resumed.

`agent.stores.folder` stores a job in a plain folder; the service implements the same protocol on its database. Every
method is durable when it returns and safe to repeat: a restarted job simply calls it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from agent.candidates import Candidate
from evaluator.verdict import Verdict

PHASES = ("screen", "validation", "held_out")
#: Steps with the plan of a delivered file, one per attempted file; the last one counts.
PLAN_STEPS = "optimized/"


class JobStore(Protocol):
    """The durable state of one job."""

    def candidates(self) -> list[Candidate]:
        """All candidates of the job in order of arrival, including external ones."""
        ...

    def add_candidate(self, candidate: Candidate) -> bool:
        """Add a candidate; returns False and changes nothing if one with the same sha256 exists."""
        ...

    def verdict(self, sha256: str, phase: str) -> Verdict | None:
        """The stored verdict of a candidate in one of `PHASES`, or None."""
        ...

    def add_verdict(self, sha256: str, phase: str, verdict: Verdict) -> bool:
        """Store a verdict; returns False and changes nothing if that phase already has one."""
        ...

    def step(self, name: str) -> object | None:
        """The JSON value of a finished step, or None if it is not finished."""
        ...

    def finish_step(self, name: str, value: object) -> None:
        """Record that a step is finished. `value` is JSON and not None; the first value for a name wins."""
        ...

    def steps(self, prefix: str) -> dict[str, object]:
        """All finished steps whose name begins with `prefix`, by name."""
        ...

    def event(self, name: str, data: dict[str, Any]) -> None:
        """Append an event (`job.started`, `job.progress`, `candidate.judged`, ...).

        A `budget.spent` with a `request` is recorded, and billed, once per request and try, even if it is repeated.
        """
        ...

    def stop_requested(self) -> str | None:
        """Why the job should stop ("cancelled" or "budget"), or None. Checked between steps and while judging."""
        ...

    def seconds_before(self) -> float:
        """Wall-clock seconds of earlier attempts; called before an attempt does anything else."""
        ...


def worked_s(events: Iterable[tuple[str, float]]) -> float:
    """Total seconds from the start of each attempt to its last event, given ordered (name, time in seconds) pairs."""
    total_s, last_s = 0.0, None
    for name, time_s in events:
        if last_s is not None and name != "job.started":
            total_s += time_s - last_s
        if name == "job.started" or last_s is not None:
            last_s = None if name == "job.waiting" else time_s
    return total_s
