"""Where a job keeps what it has learnt, so that it can be killed at any instant and resumed.

`agent.stores.folder` keeps a job in a plain folder; the service implements the same protocol on its database. Every
method is durable when it returns and safe to repeat: a job that restarts simply asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from agent.candidates import Candidate
from evaluator.verdict import Verdict

PHASES = ("screen", "validation", "held_out")
#: Steps that hold what a delivered file is made of, one for each file that was tried; the last one counts.
PLAN_STEPS = "optimized/"


class JobStore(Protocol):
    """The durable memory of one job."""

    def candidates(self) -> list[Candidate]:
        """Every candidate of the job in order of arrival, external ones included."""
        ...

    def add_candidate(self, candidate: Candidate) -> bool:
        """Add a candidate; False, changing nothing, when one with the same sha256 is already there."""
        ...

    def verdict(self, sha256: str, phase: str) -> Verdict | None:
        """The stored verdict of a candidate in one of `PHASES`, or None."""
        ...

    def add_verdict(self, sha256: str, phase: str, verdict: Verdict) -> bool:
        """Store a verdict; False, changing nothing, when that phase already has one: a verdict is never stored twice."""
        ...

    def step(self, name: str) -> object | None:
        """The JSON value of a finished step, or None when the step was not finished."""
        ...

    def finish_step(self, name: str, value: object) -> None:
        """Record that a step is finished. `value` is JSON and not None; the first value of a name wins."""
        ...

    def steps(self, prefix: str) -> dict[str, object]:
        """Every finished step whose name begins with `prefix`, by name."""
        ...

    def event(self, name: str, data: dict[str, Any]) -> None:
        """Append an event (`job.started`, `job.progress`, `candidate.judged`, ...).

        A `budget.spent` with a `request` is told, and billed, once per request and try, however often it is repeated.
        """
        ...

    def stop_requested(self) -> str | None:
        """Why the job should stop ("cancelled" or "budget"), or None. Asked between steps and while judging."""
        ...

    def seconds_before(self) -> float:
        """Wall-clock seconds that earlier attempts took; asked before an attempt does anything else."""
        ...


def worked_s(events: Iterable[tuple[str, float]]) -> float:
    """Seconds from the start of each attempt to the last thing that it told, from (name, time in seconds) in order."""
    total_s, last_s = 0.0, None
    for name, time_s in events:
        if last_s is not None and name != "job.started":
            total_s += time_s - last_s
        if name == "job.started" or last_s is not None:
            last_s = None if name == "job.waiting" else time_s
    return total_s
