"""A job's time budget: tracks the seconds left and cuts off work that would exceed them.

The budget covers the whole job: every referee call runs against this clock and is cut off when the time is up. A small
reserve remains for writing the bundle and storing the outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agent.judging import JobStopped
from evaluator.description import Description
from evaluator.errors import RefereeLost
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from evaluator.client import Referee

_RESERVE_S, _RESERVE_SHARE = 5.0, 0.1  # whichever is less
_EVALUATION_S = 900.0
Result = TypeVar("Result")


class OutOfTime(JobStopped):
    """The job's time is up; the message says what was cut off or left out."""


class Clock:
    """Counts a job's seconds.

    Args:
        seconds: the budget; None without a limit.
        spent_s: seconds used by earlier attempts.
        began_s: monotonic time at which this attempt began; now by default.

    Attributes:
        kept_s: seconds reserved for judging the delivered file.
    """

    def __init__(self, seconds: float | None, spent_s: float = 0.0, began_s: float | None = None) -> None:
        self.seconds = seconds
        self.kept_s = 0.0
        self._since_s = (time.monotonic() if began_s is None else began_s) - spent_s

    def used_s(self) -> float:
        """Seconds the job has used, including earlier attempts."""
        return time.monotonic() - self._since_s

    def left_s(self) -> float | None:
        """Seconds left, excluding the reserve, never below 0; None without a limit."""
        if self.seconds is None:
            return None
        reserve_s = min(_RESERVE_S, _RESERVE_SHARE * self.seconds)
        return max(self.seconds - reserve_s - self.used_s(), 0.0)

    def within(self, what: str, work: Callable[[], Result], cut_off: Callable[[], object]) -> Result:
        """Run referee work and end it with `cut_off` when the time is up.

        Raises:
            OutOfTime: if the work was cut off, or there was no time to begin it.
        """
        left_s = self.left_s()
        if left_s is None:
            return work()
        if left_s <= 0:
            raise OutOfTime(f"the budget is spent: {self.seconds:g} s; left out: {what}")
        late = threading.Event()

        def end() -> None:
            late.set()
            cut_off()

        timer = threading.Timer(left_s, end)
        timer.daemon = True
        timer.start()
        try:
            return work()
        except RefereeLost:
            if not late.is_set():
                raise
            raise OutOfTime(f"the budget is spent: {self.seconds:g} s; cut off: {what}") from None
        finally:
            timer.cancel()


class TimedReferee:
    """The methods of `evaluator.client.Referee` that a job needs, limited to the job's time budget."""

    def __init__(self, referee: Referee, clock: Clock) -> None:
        self._referee = referee
        self._clock = clock

    def describe(self, task: TaskSource, **options: Any) -> Description:
        """See `Referee.describe`."""
        return self.run("describing the task", lambda: self._referee.describe(task, **options))

    def evaluate(self, task: TaskSource, candidate: CandidateSource, **options: Any) -> Verdict:
        """See `Referee.evaluate`. A candidate is stopped before it uses the reserved `kept_s` seconds."""
        what = f"judging {candidate.label} at {' and '.join(options['splits'])} shapes"
        if self._may_take_s() is None:
            return self._referee.evaluate(task, candidate, **options)

        def work() -> Verdict:
            deadline_s = min(_EVALUATION_S, self._may_take_s() or 0.0)
            if deadline_s <= 0:
                raise self._late(f"left out: {what}")
            return self._referee.evaluate(task, candidate, deadline_s=deadline_s, **options)

        verdict = self.run(what, work)
        if verdict.verdict in ("timeout", "not_judged") and not self._may_take_s():
            raise self._late(f"cut off: {what}")  # the budget ran out, not the candidate's own limit
        return verdict

    def run_tool(self, program: str, files: Mapping[str, str], **options: Any) -> Any:
        """See `Referee.run_tool`."""
        return self.run("preparing a candidate", lambda: self._referee.run_tool(program, files, **options))

    def run(self, what: str, work: Callable[[], Result]) -> Result:
        """Run any other referee work against the clock."""
        return self._clock.within(what, work, lambda: self._referee.kill())

    def restart(self) -> None:
        """See `Referee.restart`; a service's referee starts a new process on its own."""
        restart = getattr(self._referee, "restart", None)
        if callable(restart):
            restart()

    def _may_take_s(self) -> float | None:
        left_s = self._clock.left_s()
        return None if left_s is None else max(left_s - self._clock.kept_s, 0.0)

    def _late(self, what: str) -> OutOfTime:
        kept = f", of which {self._clock.kept_s:.0f} s are kept for judging what is delivered"
        return OutOfTime(
            f"the budget is spent: {self._clock.seconds:g} s{kept if self._clock.kept_s else ''}; {what}"
        )
