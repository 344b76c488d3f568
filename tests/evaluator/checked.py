"""A candidate that has passed its checks of correctness, ready for timed blocks; for tests of what verifies these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evaluator.referee.checking.correctness import check, own_case
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.sources import CandidateSource


@contextmanager
def checked(
    session: TaskSession, shape: OpenShape, source: CandidateSource, calls: int = 1
) -> Iterator[Checker]:
    """The candidate after so many checked calls."""
    run = CandidateRun(session.fleet, session, source)
    try:
        run.start()
        side, outcome = run.open(shape), Outcome()
        check(side, shape, [own_case(shape) for _ in range(calls)], outcome)
        checker = Checker(session, shape, side, outcome)
        yield checker
        checker.kept.let_go()
    finally:
        run.close()
