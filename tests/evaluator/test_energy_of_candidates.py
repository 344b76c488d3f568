"""The referee reads the counter while a sandboxed candidate replays: joules are those of its calls, and lies end as elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import measure, pairs
from evaluator.referee.measuring.energy import measure_energy
from evaluator.referee.session.baseline_ranking import rank
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import on_core

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TASK = TaskSource(
    "sines",
    """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sin(x)

def get_inputs():
    return [torch.randn(256, 512)]

def get_init_inputs():
    return []
""",
)
#: The same, twice.
SLOWER = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        torch.sin(x)
        return torch.sin(x)
"""
#: Right for as long as it is timed, and then it only pretends.
TIRED = """
import torch
from torch import nn

class ModelNew(nn.Module):
    calls = 0

    def forward(self, x):
        ModelNew.calls += 1
        return torch.sin(x) if ModelNew.calls < LIMIT else torch.empty_like(x)
"""


def quiet(*words: object) -> None:
    """Progress that nobody reads."""


class Flowing:
    """A device that draws 50 W whatever it does."""

    name = "50 W"
    refresh_s = 0.01

    def read_mj(self) -> float:
        return int(time.perf_counter() / self.refresh_s) * self.refresh_s * 50_000


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    made = RefereeCore("cpu", Path(tmp_path_factory.mktemp("referee")), "landlock")
    yield made
    made.close()


def opened(core: RefereeCore, task: TaskSource = TASK) -> tuple[TaskSession, OpenShape]:
    session = core.session(task)
    shape = session.open({})
    if not shape.ranked:
        shape.baselines = [b for b in core.fleet.baselines() if b.mode == "eager"]
        for baseline in shape.baselines:
            session.prepare(shape.side, baseline)
        rank(session.fleet, shape)
        shape.ranked = True
    return session, shape


def test_joules_are_power_times_the_time_of_a_call(core: RefereeCore) -> None:
    with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
        session, shape = opened(core)
        run = CandidateRun(core.fleet, session, CandidateSource(SLOWER, "external", "slower"))
        timed = pairs.Timed(shape, Outcome())
        effort = measure.effort_for("confirm", gpu=False)
        pairs.time_in_pairs(session, run, [timed], effort, lambda number, at: None, captured=False)
        told: list[str] = []
        whole, each = measure_energy(
            session,
            run,
            [timed],
            lambda: None,
            lambda *words: told.append(words[3]),
            counter=Flowing(),
            seconds=0.3,
            lead_s=0.05,
        )
    assert told == ["measuring energy: the task's one shape"]
    assert whole["counter"] == "50 W" and whole["idle_w"] == pytest.approx(50.0, rel=0.05)
    found, timing = each[shape.key], pairs.figure(timed.eager)
    assert found["launch"] == "eager" and found["quads"] == 2
    # All of it is idle power, so a call costs what flows while it runs; edges of the counter leave a few percent.
    assert found["candidate"]["joules"] == pytest.approx(50.0 * timing.candidate_us / 1e6, rel=0.25)
    assert found["ratio"] == pytest.approx(timing.speedup, rel=0.25)
    assert found["ratio"] < 0.8  # twice the work


def test_without_a_counter_there_is_a_sentence(core: RefereeCore) -> None:
    session, shape = opened(core)
    run = CandidateRun(core.fleet, session, CandidateSource(SLOWER, "external", "slower"))
    whole, each = measure_energy(session, run, [pairs.Timed(shape, Outcome())], lambda: None, quiet)
    if "why_not" not in whole:
        pytest.skip("this CPU has a counter that can be read")
    assert each == {} and "joules were not measured" in whole["why_not"]


def test_a_candidate_that_stops_computing_once_it_was_timed_is_found(core: RefereeCore) -> None:
    with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
        session, shape = opened(core)
        honest = CandidateRun(core.fleet, session, CandidateSource(SLOWER, "external", "slower"))
        timed = pairs.Timed(shape, Outcome())
        effort = measure.effort_for("confirm", gpu=False)
        pairs.time_in_pairs(session, honest, [timed], effort, lambda number, at: None, captured=False)
        # In its first second it is right, as it would be if energy were not measured.
        source = TIRED.replace("LIMIT", "400")
        tired = CandidateRun(core.fleet, session, CandidateSource(source, "external", "tired"))
        with pytest.raises(Rejected):
            measure_energy(
                session, tired, [timed], lambda: None, quiet, counter=Flowing(), seconds=1.0, lead_s=0.1
            )


@pytest.mark.gpu
def test_on_a_gpu_twice_the_work_costs_about_twice_the_joules_above_idle(tmp_path: Path) -> None:
    task = TaskSource("sines", TASK.source.replace("256, 512", "8192, 4096"))
    core = RefereeCore("cuda", tmp_path, "landlock")
    try:
        with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
            session, shape = opened(core, task)
            run = CandidateRun(core.fleet, session, CandidateSource(SLOWER, "external", "slower"))
            timed = pairs.Timed(shape, Outcome())
            effort = measure.effort_for("confirm", gpu=True)
            pairs.time_in_pairs(session, run, [timed], effort, lambda number, at: None, captured=True)
            whole, each = measure_energy(session, run, [timed], lambda: None, quiet, seconds=2.0)
    finally:
        core.close()
    found = each[shape.key]
    print(whole, found)
    assert found["launch"] == "captured"
    assert 20.0 < whole["idle_w"] < 300.0
    assert found["candidate"]["power_w"] > 1.2 * whole["idle_w"]
    assert 0.4 < found["ratio"] < 0.65
    above = found["baseline"]["joules_above_idle"] / found["candidate"]["joules_above_idle"]
    assert 0.4 < above < 0.65
