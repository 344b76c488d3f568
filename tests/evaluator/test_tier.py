"""Baselines of tasks that allow products in 16 bits: what autocast makes of the reference, where its results are allowed."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session import autocast_baselines as tier
from evaluator.referee.session.control import Control
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.shapes.space import defaults
from evaluator.sources import TaskSource
from tests.evaluator.judging import task

pytestmark = pytest.mark.timeout(240)

_LINEAR = """
    PRECISION = "TIER"

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(128, 64)

        def forward(self, x):
            return {"y": self.linear(x), "rest": [x.sum(-1), 3]}

    def get_inputs():
        return [torch.randn(32, 128)]

    def get_init_inputs():
        return []
"""


_BACKWARD = ("    class Model", '    DIRECTION = "forward_backward"\n\n    class Model')


def linear(precision: str, *changes: tuple[str, str]) -> TaskSource:
    text = _LINEAR.replace("TIER", precision)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return task(text)


@pytest.fixture
def uncompiled(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> RefereeCore:
    """The same on a device where nothing is compiled."""
    monkeypatch.setattr(core.fleet.device, "baseline_modes", ("eager",), raising=True)
    monkeypatch.setattr(core.fleet.device, "autocast_modes", ("eager_autocast",), raising=True)
    monkeypatch.setattr(core.fleet, "threads", 1)
    return core


def loaded(core: RefereeCore, source: TaskSource) -> tuple[TaskSession, OpenShape]:
    session = core.session(source)
    shape = session.open(defaults(session.space))
    session.compile_baselines([shape], lambda *_: None)
    return session, shape


def results(session: TaskSession, shape: OpenShape, *variants: str) -> list[list[np.ndarray]]:
    """The outputs of some variants for the same content."""
    side = shape.side
    side.fill(1)
    contents = side.contents(0)
    found = []
    for variant in variants:
        side.ready(60.0)
        side.write(0, contents)
        block = side.block(1, 60.0, variant=variant)
        assert block.report.metas == shape.output_metas
        found.append([values.astype(np.float64) for values in side.outputs(block, 0)])
    return found


@pytest.mark.parametrize(
    ("precision", "bits"), [("bf16", 8), ("fp16", 11), ("fp8", 8)], ids=["bf16", "fp16", "fp8"]
)
def test_autocast_is_a_baseline_in_these_tiers(uncompiled: RefereeCore, precision: str, bits: int) -> None:
    session, shape = loaded(uncompiled, linear(precision))
    assert [baseline.name for baseline in shape.baselines] == ["eager/1t", "eager_autocast/1t"]
    assert not any(baseline.failure for baseline in shape.baselines)
    plain, lower = results(session, shape, "eager/1t", "eager_autocast/1t")
    error = float(np.abs(lower[-1] - plain[-1]).max() / np.abs(plain[-1]).max())
    assert 2.0 ** -(bits + 4) < error < 2.0 ** -(bits - 2)
    assert all(np.array_equal(a, b) for a, b in zip(plain[:-1], lower[:-1], strict=True))
    assert ("autocast to float8" in session.unavailable) == (precision == "fp8")


@pytest.mark.parametrize("precision", ["default", "strict", "tf32"])
def test_there_is_none_above(uncompiled: RefereeCore, precision: str) -> None:
    _, shape = loaded(uncompiled, linear(precision))
    assert [baseline.name for baseline in shape.baselines] == ["eager/1t"]


def test_it_is_dropped_where_its_results_are_too_far_off(uncompiled: RefereeCore) -> None:
    """A sum in bfloat16 loses what is added to a large number, which rounding the product's operands does not."""
    source = linear("bf16", ("self.linear(x)", "(self.linear(x) + 1000.0) - 1000.0"))
    session, shape = loaded(uncompiled, source)
    eager, lower = shape.baselines
    assert not eager.failure
    assert lower.failure.startswith(tier.BEYOND)
    assert session.unavailable[lower.name] == lower.failure
    with uncompiled.fleet.device_lock.exclusive():
        session.rank_baselines([shape], lambda *_: None)
    assert shape.best is eager
    # It is remembered with its reason, and the ranking with it.
    shape.baselines, shape.ranked = [], False
    session.compile_baselines([shape], lambda *_: None)
    assert shape.remembered
    assert [baseline.failure for baseline in shape.baselines] == ["", lower.failure]


def test_it_is_timed_with_gradients_in_a_young_process(uncompiled: RefereeCore) -> None:
    # The gradient of a bias is a sum, which autocast rounds and this tier does not allow.
    source = linear("bf16", ("nn.Linear(128, 64)", "nn.Linear(128, 64, bias=False)"), _BACKWARD)
    session, shape = loaded(uncompiled, source)
    lower = shape.baselines[1]
    assert not lower.failure
    assert {meta.dtype for meta in shape.output_metas} == {"float32", "int64"}
    control = Control(uncompiled.fleet, session)
    try:
        with uncompiled.fleet.device_lock.exclusive():
            side = control.side(shape, lower)
            assert side is not shape.side
            assert lower.run(side, 4).elapsed_ns > 0
    finally:
        control.close()


@pytest.mark.slow
def test_the_compiled_form_casts_its_results_back(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.fleet.device, "baseline_modes", ("eager",))
    monkeypatch.setattr(core.fleet.device, "autocast_modes", ("compile_autocast",))
    monkeypatch.setattr(core.fleet, "threads", 1)
    session, shape = loaded(core, linear("bf16", ("(32, 128)", "(33, 128)")))
    (compiled,) = [b for b in shape.baselines if b.mode == "compile_autocast"]
    assert not compiled.failure
    plain, lower = results(session, shape, "eager/1t", compiled.name)
    assert 2.0**-12 < np.abs(lower[-1] - plain[-1]).max() / np.abs(plain[-1]).max() < 2.0**-6
