"""Memory of a timed output is nobody's to use again while somebody holds that output, however many calls later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evaluator.errors import RoleReported
from evaluator.referee.candidate import CandidateRun
from evaluator.referee.control import twin
from evaluator.referee.core import RefereeCore
from evaluator.referee.correctness import Outcome, Rejected, check, make_case
from evaluator.referee.open_shape import Baseline, OpenShape
from evaluator.referee.task_session import TaskSession
from evaluator.referee.verify import Checker
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.test_fresh_processes import TASK, candidate

_CALLS, _BLOCKS = 8, 12
_RING = "from itertools import count\nturn = count()\nring = [torch.zeros(64, 96) for _ in range(40)]"
#: A view of an input changes with it.
VIEW = TaskSource(
    "view_and_more",
    """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x[:, :48], torch.relu(x)

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


@contextmanager
def checked(session: TaskSession, shape: OpenShape, source: CandidateSource) -> Iterator[Checker]:
    """The candidate after the checks of correctness."""
    run = CandidateRun(session.fleet, session, source)
    try:
        run.start()
        side, outcome = run.open(shape), Outcome()
        cases = [make_case(session, shape, "task", []) for _ in range(4)]
        check(side, shape, cases, outcome)
        checker = Checker(session, shape, side, outcome, [])
        yield checker
        checker.let_go()
    finally:
        run.close()


def run(checker: Checker, blocks: int = _BLOCKS) -> None:
    """So many blocks, and then a look at what was kept."""
    for _ in range(blocks):
        checker.run(_CALLS)
    checker.finish()


def rules(rejected: pytest.ExceptionInfo[Rejected]) -> list[str]:
    return [finding.rule for finding in rejected.value.findings]


def test_a_ring_longer_than_a_block_is_found(session: TaskSession, shape: OpenShape) -> None:
    source = candidate("return torch.clamp(x * 1.5, min=0, out=ring[next(turn) % 40])", _RING)
    with checked(session, shape, source) as checker:
        # Nothing else notices.
        run(checker)
        checker.hold()
        with pytest.raises(Rejected) as rejected:
            run(checker)
    assert rules(rejected) == ["output_overwritten"]
    assert rejected.value.word == "contract_violation"


def test_a_ring_that_begins_late_is_found(session: TaskSession, shape: OpenShape) -> None:
    """By outputs that took the places of earlier ones."""
    source = candidate(
        "n = next(turn); y = torch.relu(x * 1.5); return y if n < 200 else ring[n % 40].copy_(y)", _RING
    )
    with checked(session, shape, source) as checker:
        checker.hold()
        with pytest.raises(Rejected) as rejected:
            run(checker, 5 * _BLOCKS)
    assert rules(rejected) == ["output_overwritten"]


def test_few_outputs_live_on_and_none_when_timing_has_ended(session: TaskSession, shape: OpenShape) -> None:
    before = "import weakref\nmade = []"
    # What the block has made so far, and what is kept.
    body = (
        "alive = sum(one() is not None for one in made); made[:] = [one for one in made if one() is not None]; "
        f"assert alive < {_CALLS} + 5, alive; y = torch.relu(x * 1.5); made.append(weakref.ref(y)); return y"
    )
    with checked(session, shape, candidate(body, before)) as checker:
        checker.hold()
        run(checker, 3 * _BLOCKS)
    strict = candidate(body.replace(f"{_CALLS} + 5", f"{_CALLS} + 1"), before)
    with checked(session, shape, strict) as checker:
        checker.run(_CALLS)
        checker.hold()
        with pytest.raises(RoleReported, match="AssertionError"):
            run(checker)
    with checked(session, shape, strict) as checker:
        checker.hold()
        checker.run(1)
        checker.finish()
        checker.let_go()
        for _ in range(2):
            checker.side.ready(60.0, warm="eager", poison=0, calls=_CALLS)
            checker.side.fill(_CALLS)
            checker.side.block(_CALLS, 60.0, chained=True)


def test_both_sides_keep_outputs_of_the_same_calls(core: RefereeCore) -> None:
    session = core.session(TASK)
    shape = session.open({})
    baseline = Baseline("eager/1t", "eager", 1)
    session.prepare(shape.side, baseline)
    with checked(session, shape, twin(TASK)) as checker:
        checker.hold()
        for first in (True, False) * _BLOCKS:
            for mine in (first, not first):
                if mine:
                    checker.run(_CALLS)
                else:
                    checker.run_rival(shape.side, baseline, _CALLS)
        # Of the candidate's one or two may still wait to be looked at.
        kept = list(checker.side.kept.values())
        assert len(shape.side.kept) == 4
        assert set(shape.side.kept.values()) <= set(kept)
        checker.finish()
        checker.let_go()
        assert not shape.side.kept and not checker.side.kept


def test_a_view_of_an_input_may_change(core: RefereeCore) -> None:
    session = core.session(VIEW)
    shape = session.open({})
    with checked(session, shape, twin(VIEW)) as checker:
        checker.hold()
        run(checker)
