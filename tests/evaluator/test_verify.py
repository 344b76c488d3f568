"""A block that is verified later is verified as it was when its clock stopped, whatever has happened since."""

from __future__ import annotations

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.checked import checked
from tests.evaluator.test_fresh_processes import TASK, candidate

_CALLS = 8
#: Copies of rows of a transposed tensor, such as a graph returns, have no gaps between them.
OTHER_LAYOUT = TaskSource(
    "rows_of_columns",
    """
import torch
from torch import nn

PRECISION = "bf16"

class Model(nn.Module):
    def forward(self, x):
        y = (x * 1.5).t()[:5]
        return y.clone() if torch.is_autocast_enabled("cpu") else y

def get_inputs():
    return [torch.randn(64, 96)]

def get_init_inputs():
    return []
""",
)


@pytest.fixture(scope="module")
def session(core: RefereeCore) -> TaskSession:
    return core.session(TASK)


@pytest.fixture(scope="module")
def shape(session: TaskSession) -> OpenShape:
    return session.open({})


def test_contents_that_are_written_meanwhile_belong_to_another_block(
    session: TaskSession, shape: OpenShape
) -> None:
    with checked(session, shape, twin(TASK)) as checker:
        for later in (True, False) * 4:
            checker.run(_CALLS, later=later)
            # What the harness takes is learnt in the candidate's process, too.
            checker.side.null_ns(1, shape.output_metas)
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
    assert [rejected.value.finding.rule] == ["input_tampered"]


def test_a_baseline_that_lays_its_outputs_out_otherwise_is_no_fault_of_the_candidate(
    core: RefereeCore,
) -> None:
    session = core.session(OTHER_LAYOUT)
    shape = session.open({})
    baseline = Baseline("eager_autocast/1t", "eager_autocast", 1)
    session.prepare(shape.side, baseline)
    with checked(session, shape, twin(OTHER_LAYOUT)) as checker:
        for later in (True, False):
            checker.run(_CALLS, later=later)
            block = checker.run_rival(shape.side, baseline, _CALLS)
        assert block.report.metas[0].strides != shape.output_metas[0].strides
        checker.compare_pending()


@pytest.mark.parametrize(
    ("returned", "fits"), [("y.contiguous()", True), ("torch.empty_strided((5, 64), (1, 7)).copy_(y)", False)]
)
def test_timed_outputs_may_be_contiguous_and_otherwise_lie_as_the_references(
    core: RefereeCore, returned: str, fits: bool
) -> None:
    """Right when it is checked, and of other strides in blocks of several calls."""
    session = core.session(OTHER_LAYOUT)
    shape = session.open({})
    text = OTHER_LAYOUT.source.replace("class Model(", "calls = []\n\nclass ModelNew(")
    old = 'return y.clone() if torch.is_autocast_enabled("cpu") else y'
    assert old in text
    text = text.replace(old, f"calls.append(0); return {returned} if len(calls) > 1 else y")
    with checked(session, shape, CandidateSource(text)) as checker:
        if fits:
            checker.run(_CALLS)
            checker.compare_pending()
            return
        with pytest.raises(Rejected, match=r"in a timed block an output has strides .* return it contiguous"):
            checker.run(_CALLS)
