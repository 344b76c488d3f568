"""Memory of a timed output is nobody's to use again while somebody holds that output, however many calls later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator.errors import RoleReported
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.sources import TaskSource
from evaluator.timing.cores import on_core
from tests.evaluator.checked import checked
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


def run(checker: Checker, blocks: int = _BLOCKS) -> None:
    """So many blocks, and then a look at what was kept."""
    for _ in range(blocks):
        checker.run(_CALLS)
    checker.kept.finish()


def rules(rejected: pytest.ExceptionInfo[Rejected]) -> list[str]:
    return [rejected.value.finding.rule]


def test_a_ring_longer_than_a_block_is_found(session: TaskSession, shape: OpenShape) -> None:
    source = candidate("return torch.clamp(x * 1.5, min=0, out=ring[next(turn) % 40])", _RING)
    with checked(session, shape, source, calls=4) as checker:
        # Nothing else notices.
        run(checker)
        checker.keep_outputs()
        with pytest.raises(Rejected) as rejected:
            run(checker)
    assert rules(rejected) == ["output_overwritten"]
    assert rejected.value.word == "contract_violation"


def test_a_ring_that_begins_late_is_found(session: TaskSession, shape: OpenShape) -> None:
    """By outputs that took the places of earlier ones."""
    source = candidate(
        "n = next(turn); y = torch.relu(x * 1.5); return y if n < 200 else ring[n % 40].copy_(y)", _RING
    )
    with checked(session, shape, source, calls=4) as checker:
        checker.keep_outputs()
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
    with checked(session, shape, candidate(body, before), calls=4) as checker:
        checker.keep_outputs()
        run(checker, 3 * _BLOCKS)
    strict = candidate(body.replace(f"{_CALLS} + 5", f"{_CALLS} + 1"), before)
    with checked(session, shape, strict, calls=4) as checker:
        checker.run(_CALLS)
        checker.keep_outputs()
        with pytest.raises(RoleReported, match="AssertionError"):
            run(checker)
    with checked(session, shape, strict, calls=4) as checker:
        checker.keep_outputs()
        checker.run(1)
        checker.kept.finish()
        checker.kept.let_go()
        for _ in range(2):
            checker.side.ready(60.0, warm="eager", poison=0, calls=_CALLS)
            checker.side.fill(_CALLS)
            checker.side.block(_CALLS, 60.0, chained=True)


def test_both_sides_keep_outputs_of_the_same_calls(core: RefereeCore) -> None:
    session = core.session(TASK)
    shape = session.open({})
    baseline = Baseline("eager/1t", "eager", 1)
    session.prepare(shape.side, baseline)
    with checked(session, shape, twin(TASK), calls=4) as checker:
        checker.keep_outputs()
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
        checker.kept.finish()
        checker.kept.let_go()
        assert not shape.side.kept and not checker.side.kept


def test_a_view_of_an_input_may_change(core: RefereeCore) -> None:
    session = core.session(VIEW)
    shape = session.open({})
    with checked(session, shape, twin(VIEW), calls=4) as checker:
        checker.keep_outputs()
        run(checker)


@pytest.mark.parametrize("claimed", [0, 2])
def test_a_process_that_claims_another_number_of_outputs_is_rejected(
    session: TaskSession, shape: OpenShape, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    """As it can on a GPU, where it is asked what lies in memory of its own."""
    with checked(session, shape, twin(TASK), calls=4) as checker:
        honest = checker.side.kept_now

        def forged(*asked: Any) -> list[Any]:
            return honest(*asked) * claimed

        monkeypatch.setattr(checker.side, "kept_now", forged)
        checker.keep_outputs()
        with pytest.raises(Rejected) as rejected:
            run(checker, 1)
    assert rules(rejected) == ["output_overwritten"]


@pytest.mark.gpu
@pytest.mark.parametrize(("length", "blocks"), [(3000, 1), (3000, 6), (40, _BLOCKS)])
def test_on_a_gpu_a_ring_is_found_and_one_that_is_long_enough_is_not(
    tmp_path: Path, length: int, blocks: int
) -> None:
    """In memory of its own, so that the process copies what is looked at; after one block it has not been told yet to keep it."""
    core = RefereeCore("cuda", tmp_path, "landlock")
    try:
        session = core.session(TASK)
        shape = session.open({})
        ring = _RING.replace("range(40)", f"range({length})").replace("96)", "96, device='cuda')")
        body = f"return torch.clamp(x * 1.5, min=0, out=ring[next(turn) % {length}])"
        with (
            core.fleet.device_lock.exclusive(),
            on_core(core.fleet.core),
            checked(session, shape, candidate(body, ring), calls=4) as checker,
        ):
            checker.keep_outputs()
            if length < _CALLS * blocks:
                with pytest.raises(Rejected) as rejected:
                    run(checker, blocks)
                assert rules(rejected) == ["output_overwritten"]
            else:
                run(checker, blocks)
    finally:
        core.close()
