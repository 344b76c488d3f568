"""Blocks whose calls all use one slot: honest candidates get a figure, and nobody gets one for results of the call before."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.devices.base import Clock
from evaluator.referee.checking.correctness import cases, check
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.measure import Effort, Timing, measure
from evaluator.referee.measuring.warm import measure_warm
from evaluator.referee.session.baseline_ranking import rank
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control, twin
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.shapes.space import defaults
from evaluator.sources import CandidateSource, TaskSource
from tests.attacks.test_candidates import TASK
from tests.evaluator.judging import task

pytestmark = [pytest.mark.timeout(240), pytest.mark.alone]

_SHORT = Effort((5,), 1.0, 1.0)

#: Right wherever a call is checked alone or slots rotate; in a warm block it notices that nothing but the chain's refresh
#: can have happened since the last call.
ATTACK = """
import time

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.address, self.at, self.result, self.seen = 0, 0.0, None, None

    def forward(self, x):
        now = time.perf_counter()
        again = x.data_ptr() == self.address and now - self.at < 0.0005
        if again:
            SHORTCUT
        else:
            result = F.relu(self.norm(x))
        self.address, self.at, self.result = x.data_ptr(), time.perf_counter(), result
        return result
"""
SHORTCUTS = {
    "returns what it returned before": "result = self.result",
    "copies it": "result = self.result.clone()",
    "computes a part": (
        "result = self.result.clone(); half = x.shape[0] // 2; result[:half] = F.relu(self.norm(x[:half]))"
    ),
    "undoes the refresh": (
        "x.copy_(self.seen) if self.seen is not None else None; result = F.relu(self.norm(x)); self.seen = x.clone()"
    ),
}


def attacker(shortcut: str) -> CandidateSource:
    return CandidateSource(ATTACK.replace("SHORTCUT", shortcut), "external", "shortcut")


def opened(core: RefereeCore, source: TaskSource) -> tuple[TaskSession, OpenShape]:
    """The task at its default shape, with the eager reference as its only baseline."""
    session = core.session(source)
    shape = session.open(defaults(session.space))
    if not shape.baselines:
        everything = core.fleet.baselines()
        shape.baselines = [b for b in everything if b.mode == "eager" and b.threads == core.fleet.threads]
        session.prepare(shape.side, shape.baselines[0])
        rank(session.fleet, shape)
    return session, shape


def timed(core: RefereeCore, source: TaskSource, candidate: CandidateSource) -> tuple[Timing, dict[str, Any]]:
    """A short cold measurement, which must accept the candidate, and ``shapes[].warm`` after it."""
    with core.fleet.device_lock.exclusive():
        session, shape = opened(core, source)
        run, control = CandidateRun(core.fleet, session, candidate), Control(core.fleet, session)
        try:
            run.start()
            side, outcome = run.open(shape), Outcome()
            check(side, shape, cases(session, shape), outcome)
            try:
                cold = measure(session, shape, side, control.rivals(shape), outcome, _SHORT)
            except Rejected as rejected:
                pytest.fail(f"already where slots rotate: {rejected.sentence}")
            return cold, measure_warm(session, shape, side, control, outcome, cold)
        finally:
            run.close()
            control.close()


@pytest.mark.slow
def test_the_reference_against_itself_gets_a_figure(core: RefereeCore) -> None:
    speedups = []
    # A neighbor may have a core for seconds; what the harness itself did wrong would be there every time.
    while not any(0.8 < speedup < 1.25 for speedup in speedups):
        assert len(speedups) < 6, speedups
        _, found = timed(core, TASK, twin(TASK))
        assert found["launch"] == "eager"
        assert found["baseline"].startswith("eager/")
        assert len(found["log_ratios"]) >= 5
        speedups.append(found["speedup"])
    assert found["ci95"][0] <= found["speedup"] <= found["ci95"][1]


@pytest.mark.slow
def test_cycles_are_reported_where_a_clock_is_held_back(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = timed(core, TASK, twin(TASK))
    assert (cold.clock, cold.cycles, cold.cycle_log_ratios) == (None, None, ())
    monkeypatch.setattr(core.fleet.device, "clock", lambda: Clock(1500, ("sw_power_cap",)))
    cold, found = timed(core, TASK, twin(TASK))
    assert cold.clock == {"sm_mhz": [1500, 1500], "reasons": ["sw_power_cap"]}
    # The same clock on both sides, so the same ratio.
    assert cold.cycle_log_ratios == cold.log_ratios
    assert cold.cycles is not None
    assert cold.cycles["speedup"] == pytest.approx(cold.speedup)
    assert found["cycles"] is not None


@pytest.mark.attacks
@pytest.mark.parametrize("shortcut", SHORTCUTS.values(), ids=SHORTCUTS)
def test_results_of_the_call_before_are_refused(core: RefereeCore, shortcut: str) -> None:
    with pytest.raises(Rejected) as rejected:
        timed(core, TASK, attacker(shortcut))
    assert rejected.value.word in ("incorrect", "cheating")
    assert "in a timed" in rejected.value.sentence


_NO_FIGURE = {
    "an index table alone": (
        """
        class Model(nn.Module):
            def forward(self, positions):
                return torch.sin(positions.float() / 100)

        def get_inputs():
            return [torch.arange(4096)]
        """,
        "every call on one buffer would return the same",
    ),
    "a result that hardly notices": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return (x > -100).sum(-1) + x.amax(-1).clamp(100.0, 101.0).long()

        def get_inputs():
            return [torch.randn(64, 256)]
        """,
        "could be copied from the previous call",
    ),
    "a view of its input": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.t(), x * 2

        def get_inputs():
            return [torch.randn(64, 256)]
        """,
        "a view of an input",
    ),
    "calls that take long": (
        """
        import time

        class Model(nn.Module):
            def forward(self, x):
                time.sleep(0.025)
                return torch.relu(x)

        def get_inputs():
            return [torch.randn(64, 256)]
        """,
        "hardly depends on whether its inputs are in the caches",
    ),
}


@pytest.mark.parametrize(("body", "words"), _NO_FIGURE.values(), ids=_NO_FIGURE)
def test_no_figure_where_nothing_would_have_to_be_computed_or_caches_hardly_matter(
    core: RefereeCore, body: str, words: str
) -> None:
    source = task(body + "\n        def get_init_inputs():\n            return []\n")
    _, found = timed(core, source, twin(source))
    assert list(found) == ["why_not"]
    assert words in found["why_not"]
