"""Pairs of fresh processes: each is checked anew, baselines run in processes of their own, and files outlive one process.

Tests that time nothing, a compiled baseline's among them, share the machine with others.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.measure import Effort
from evaluator.referee.measuring.pairs import LEAST, Timed, figure, time_in_pairs
from evaluator.referee.session.baseline_ranking import rank
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control, twin
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.roles.process import RoleProcess
from evaluator.roles.tool_run import run_tool
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import on_core

TASK = TaskSource(
    "scale",
    """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * 1.5)

def get_inputs():
    return [torch.randn(64, 96)]

def get_init_inputs():
    return []
""",
)
#: As short as can be: what is measured is of no interest here.
SHORT = Effort((2,), 1.0, 0.1)


@pytest.fixture(scope="module")
def session(core: RefereeCore) -> TaskSession:
    return core.session(TASK)


@pytest.fixture(scope="module")
def shape(session: TaskSession) -> OpenShape:
    """With eager baselines alone, on one thread and on all."""
    shape = session.open({})
    shape.baselines = [b for b in session.fleet.baselines() if b.mode == "eager"]
    for number, baseline in enumerate(shape.baselines):
        session.prepare(shape.side, baseline)
        baseline.median_us = 5.0 + number
    return shape


def candidate(body: str, before: str = "") -> CandidateSource:
    head = f"import os\nimport torch\nfrom torch import nn\n{before}\n"
    return CandidateSource(f"{head}class ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n")


class Watched(CandidateRun):
    """Remembers the runs that were made of it."""

    def again(self) -> CandidateRun:
        self.made = [*getattr(self, "made", []), super().again()]
        return self.made[-1]


def timed(session: TaskSession, shape: OpenShape, source: CandidateSource) -> Timed:
    todo = Timed(shape, Outcome())
    run = CandidateRun(session.fleet, session, source)
    time_in_pairs(session, run, [todo], SHORT, lambda number, at: None, captured=False)
    return todo


@pytest.mark.alone
def test_every_pair_is_new_and_the_figure_is_of_all(session: TaskSession, shape: OpenShape) -> None:
    todo, run = Timed(shape, Outcome()), Watched(session.fleet, session, twin(TASK))
    seen: list[RoleProcess] = []

    def step(number: int, at: Timed) -> None:
        process = run.made[number].process
        assert process is not None and not process.dead
        assert all(earlier.dead for earlier in seen)
        seen.append(process)

    time_in_pairs(session, run, [todo], SHORT, step, captured=False)
    whole = figure(todo.eager)
    assert len({process.pid for process in seen}) == len(whole.pairs) >= LEAST
    assert all(pair["fresh_baseline"] for pair in whole.pairs)
    assert sum(pair["quads"] for pair in whole.pairs) == len(whole.log_ratios)
    assert todo.outcome.checks > LEAST


@pytest.mark.alone
def test_a_process_that_starts_wrong_is_noticed_before_it_is_timed(
    session: TaskSession, shape: OpenShape
) -> None:
    with pytest.raises(Rejected) as rejected:
        timed(session, shape, candidate("return torch.relu(x * 1.5) + 1"))
    assert "timed call" not in rejected.value.sentence


@pytest.mark.alone
def test_a_process_that_turns_wrong_while_it_is_timed_is_noticed(
    session: TaskSession, shape: OpenShape
) -> None:
    source = candidate("global calls; calls += 1; return torch.relu(x * 1.5) + (calls > 1)", "calls = 0")
    with pytest.raises(Rejected) as rejected:
        timed(session, shape, source)
    assert "timed call" in rejected.value.sentence


def test_each_number_of_threads_has_a_process_of_its_own(session: TaskSession, shape: OpenShape) -> None:
    control = Control(session.fleet, session)
    try:
        rivals = control.rivals(shape)
        processes = [side.process for _, side in rivals]
        assert len({process.pid for process in processes}) == len(rivals) == len(shape.baselines)
        assert session.process not in processes
        assert all(process.frozen for process in processes)
        assert control.side(shape, rivals[0][0]) is rivals[0][1]
    finally:
        control.close()
    assert all(process.dead for process in processes)


def test_a_compiled_baseline_runs_in_the_control_from_the_tasks_cache(
    session: TaskSession, shape: OpenShape
) -> None:
    compiled = Baseline("compile_default/1t", "compile_default", 1)
    session.prepare(shape.side, compiled)
    borrowed = Control(session.fleet, session)
    assert borrowed.side(shape, compiled) is shape.side
    borrowed.close()
    control = Control(session.fleet, session, compiled=True)
    try:
        side = control.side(shape, compiled)
        assert side.process is not session.process
        own, theirs = (compiled.run(at, 3) for at in (shape.side, side))
        assert own.report.metas == theirs.report.metas
    finally:
        control.close()


def test_links_are_copied_as_links(core: RefereeCore) -> None:
    """What a compile role leaves in a folder must not bring other files into its next process."""
    folder = core.fleet.store / "kernelwright-linked"
    folder.mkdir()
    (folder / "link").symlink_to(core.fleet.store)
    try:
        process = core.fleet.server("candidate").fork(
            role="tool", folder=folder.name, folder_mode="copy", limits=core.fleet.limits
        )
        program = "import os\nprint(os.path.islink(os.environ['KERNELWRIGHT_WORK'] + '/link'))\n"
        assert run_tool(process, program, {}, 30.0).stdout.strip() == "True"
    finally:
        shutil.rmtree(folder)


def test_a_process_compiles_by_itself_in_threads(core: RefereeCore) -> None:
    """A pool of compiling processes would go on off turn: candidates that compile were called cheats for it. Threads end with the call."""
    program = (
        "import torch._inductor.config as config\nfrom torch._inductor.select_algorithm import get_num_workers\n"
        "print(config.compile_threads, get_num_workers())\n"
    )
    threads = min(8, len(os.sched_getaffinity(0)))
    process = core.fleet.server("candidate").fork(role="tool", limits=core.fleet.limits)
    for one in (core.fleet.tool(None, device=False), process):
        assert run_tool(one, program, {}, 60.0).stdout.split() == ["1", str(threads)]


@pytest.mark.slow
def test_a_process_sees_the_gpu_that_its_referee_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several; with another one as its first, it cannot map what the referee shares with it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    core = RefereeCore("cpu", tmp_path, "landlock")
    try:
        program = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], 'PATH' in os.environ, len(os.environ) < 20)\n"
        result = run_tool(core.fleet.tool(None, device=True), program, {}, 30.0)
        assert result.stdout.split() == ["1", "True", "True"]
    finally:
        core.close()


@pytest.mark.alone
@pytest.mark.slow
def test_the_reference_agrees_with_itself_in_pairs(session: TaskSession, shape: OpenShape) -> None:
    """Not that it comes out at 1, which this machine may be too busy for: that it is not called anything else each time. An interval of
    few pairs misses by chance in up to a run of sixty on a busy machine; a fault of the harness would be there every time."""
    for _ in range(3):
        if figure(timed(session, shape, twin(TASK)).eager).decision not in ("faster", "slower"):
            return
    pytest.fail("the reference was called faster or slower than itself three times")


@pytest.mark.alone
@pytest.mark.gpu
def test_replays_of_a_graph_are_timed_in_every_pair(tmp_path: Path) -> None:
    core = RefereeCore("cuda", tmp_path, "landlock")
    try:
        session = core.session(TASK)
        with core.fleet.device_lock.exclusive(), on_core(core.fleet.core):
            shape = session.open({})
            shape.baselines = [b for b in core.fleet.baselines() if b.mode == "eager"]
            session.prepare(shape.side, shape.baselines[0])
            rank(session.fleet, shape)
            todo = Timed(shape, Outcome())
            run = CandidateRun(core.fleet, session, twin(TASK))
            time_in_pairs(session, run, [todo], SHORT, lambda number, at: None, captured=True)
        assert not todo.why_not
        assert len(figure(todo.eager).pairs) >= LEAST
        assert len(figure(todo.captured).pairs) >= LEAST
    finally:
        core.close()


@pytest.mark.alone
def test_a_timed_tool_prepares_while_others_time_and_has_the_device_to_itself_later(
    core: RefereeCore,
) -> None:
    """Compiling a tuner's settings takes minutes."""
    program = """
import json, time
def prepare():
    global began_s, ended_s
    began_s = time.monotonic()
    while time.monotonic() - began_s < 1.5:
        time.sleep(0.05)
    ended_s = time.monotonic()
def main():
    main_s = time.monotonic()
    time.sleep(0.5)
    with open("out/times.json", "w") as file:
        json.dump([began_s, ended_s, main_s, time.monotonic()], file)
"""
    held: list[tuple[float, float]] = []
    ends = threading.Event()

    def others() -> None:
        while not ends.is_set():
            with core.fleet.device_lock.exclusive():
                began_s = time.monotonic()
                time.sleep(0.2)
                held.append((began_s, time.monotonic()))
            time.sleep(0.1)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        result = core.run_tool(program, {}, deadline_s=60.0, timed=True)
    finally:
        ends.set()
        thread.join()
    assert result.status == "ok", result
    began_s, ended_s, main_s, end_s = json.loads(result.outputs["times.json"])
    assert any(began_s < one[0] and one[1] < ended_s for one in held), "nothing was timed during preparation"
    assert all(one[1] < main_s or one[0] > end_s for one in held), "something was timed beside it"
