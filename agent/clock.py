"""The seconds of a job's budget: how many are left, and the end of what would take more.

A budget in seconds is for all of a job, so that whatever the referee is asked runs against this clock and is cut off when the
seconds are over. A reserve of them stays for what must still happen then: to write the bundle and to store how the job ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agent.judging import JobStopped
from evaluator.errors import RefereeLost
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from evaluator.client import Referee

_RESERVE_S, _RESERVE_SHARE = 5.0, 0.1  # whichever is less
_EVALUATION_S = 900.0
Result = TypeVar("Result")


class OutOfTime(JobStopped):
    """The job's seconds are over; its message says what was cut off or left out."""


class Clock:
    """Counts a job's seconds.

    Args:
        seconds: of the budget; None without a limit.
        spent_s: of them, what earlier attempts have used.
        began_s: monotonic time at which this attempt began; now by default.

    Attributes:
        kept_s: seconds that no judging but that of the delivered file may use.
    """

    def __init__(self, seconds: float | None, spent_s: float = 0.0, began_s: float | None = None) -> None:
        self.seconds = seconds
        self.kept_s = 0.0
        self._since_s = (time.monotonic() if began_s is None else began_s) - spent_s

    def used_s(self) -> float:
        """Seconds that the job has used, those of earlier attempts included."""
        return time.monotonic() - self._since_s

    def left_s(self) -> float | None:
        """Seconds that are left without the reserve, never below 0; None without a limit."""
        if self.seconds is None:
            return None
        reserve_s = min(_RESERVE_S, _RESERVE_SHARE * self.seconds)
        return max(self.seconds - reserve_s - self.used_s(), 0.0)

    def within(self, what: str, work: Callable[[], Result], cut_off: Callable[[], object]) -> Result:
        """Do some work of the referee's, which `cut_off` ends when no seconds are left.

        Raises:
            OutOfTime: it was ended, or there was no time to begin it.
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
    """A referee whose calls end with the job's seconds: the methods of `evaluator.client.Referee` that a job needs."""

    def __init__(self, referee: Referee, clock: Clock) -> None:
        self._referee = referee
        self._clock = clock

    def describe(self, task: TaskSource, **options: Any) -> dict[str, Any]:
        """See `Referee.describe`."""
        return self.run("describing the task", lambda: self._referee.describe(task, **options))

    def evaluate(self, task: TaskSource, candidate: CandidateSource, **options: Any) -> Verdict:
        """See `Referee.evaluate`. Where seconds are kept, a candidate that would use them is stopped before that."""
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
            raise self._late(f"cut off: {what}")  # it was the budget's time that it did not have
        return verdict

    def run_tool(self, program: str, files: Mapping[str, str], **options: Any) -> Any:
        """See `Referee.run_tool`."""
        return self.run("preparing a candidate", lambda: self._referee.run_tool(program, files, **options))

    def run(self, what: str, work: Callable[[], Result]) -> Result:
        """Anything else that has the referee at work."""
        return self._clock.within(what, work, lambda: self._referee.kill())

    def restart(self) -> None:
        """See `Referee.restart`; a service's referee gets a new process by itself."""
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
