"""A block that is verified later is verified as it was when its clock stopped, whatever has happened since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evaluator.referee.candidate import CandidateRun
from evaluator.referee.control import twin
from evaluator.referee.core import RefereeCore
from evaluator.referee.correctness import Outcome, Rejected, check, make_case
from evaluator.referee.open_shape import OpenShape
from evaluator.referee.task_session import TaskSession
from evaluator.referee.verify import Checker
from evaluator.sources import CandidateSource
from tests.evaluator.test_fresh_processes import TASK, candidate

_CALLS = 8


@pytest.fixture(scope="module")
def session(core: RefereeCore) -> TaskSession:
    return core.session(TASK)


@pytest.fixture(scope="module")
def shape(session: TaskSession) -> OpenShape:
    return session.open({})


@contextmanager
def checked(session: TaskSession, shape: OpenShape, source: CandidateSource) -> Iterator[Checker]:
    """The candidate after one checked call."""
    run = CandidateRun(session.fleet, session, source)
    try:
        run.start()
        side, outcome = run.open(shape), Outcome()
        check(side, shape, [make_case(session, shape, "task", [])], outcome)
        yield Checker(session, shape, side, outcome, [])
    finally:
        run.close()


def test_contents_that_are_written_meanwhile_belong_to_another_block(
    session: TaskSession, shape: OpenShape
) -> None:
    with checked(session, shape, twin(TASK)) as checker:
        for later in (True, False) * 4:
            checker.run(_CALLS, later=later)
            # What the harness takes is learnt in the candidate's process, too.
            checker.side.null_ns(1, shape.output_metas, 60.0, captured=False)
        checker.settle()
        checker.compare_pending()
        assert checker.outcome.checks >= 8


def test_inputs_that_are_put_right_after_the_clock_stay_tampered_with(
    session: TaskSession, shape: OpenShape
) -> None:
    """As by work that is still going on when everybody is stopped."""
    source = candidate(
        "y = torch.relu(x * 1.5); calls.append(0); len(calls) > 1 and x.zero_(); return y", "calls = []"
    )
    with checked(session, shape, source) as checker:
        side = checker.side
        block = checker.run(_CALLS, later=True)
        states = [block.first_state, *block.report.states]
        for call in range(_CALLS):
            side.write(call, side.refreshed(side.drawn, call, [states[call]]))
        with pytest.raises(Rejected) as rejected:
            checker.settle()
    assert [finding.rule for finding in rejected.value.findings] == ["input_tampered"]
