"""Pairs of fresh processes: each is checked anew, baselines run in processes of their own, and files outlive one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.errors import RoleReported
from evaluator.referee.candidate import CandidateRun
from evaluator.referee.control import Control, twin
from evaluator.referee.core import RefereeCore
from evaluator.referee.correctness import Outcome, Rejected
from evaluator.referee.measure import Effort
from evaluator.referee.open_shape import Baseline, OpenShape
from evaluator.referee.pairs import LEAST, Timed, figure, time_in_pairs
from evaluator.referee.task_session import TaskSession
from evaluator.roles.process import RoleProcess
from evaluator.sources import CandidateSource, TaskSource

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
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    running = RefereeCore("cpu", tmp_path_factory.mktemp("referee"), "landlock")
    yield running
    running.close()


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


def test_a_process_that_starts_wrong_is_noticed_before_it_is_timed(
    session: TaskSession, shape: OpenShape
) -> None:
    with pytest.raises(Rejected) as rejected:
        timed(session, shape, candidate("return torch.relu(x * 1.5) + 1"))
    assert "timed call" not in rejected.value.sentence


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
        own, theirs = (session.run(at, compiled, 3, chained=False) for at in (shape.side, side))
        assert own.report.metas == theirs.report.metas
    finally:
        control.close()


MARKS = """
path = os.path.join(os.environ["KERNELWRIGHT_WORK"], "mark")
seen = os.path.lexists(path)
PLANT
if seen:
    raise RuntimeError("it was here before")
"""


@pytest.mark.parametrize(
    ("plant", "comes_back"),
    [("open(path, 'w').close()", True), ("seen or os.symlink('/etc', path)", False), ("pass", False)],
)
def test_files_reach_the_next_process_and_links_do_not(
    session: TaskSession, plant: str, *, comes_back: bool
) -> None:
    source = candidate("return torch.relu(x * 1.5)", MARKS.replace("PLANT", plant))
    first = CandidateRun(session.fleet, session, source, keeps_files=True)
    before = set(session.fleet.store.iterdir())
    try:
        first.start()
        first.end_process()
        second = first.again()
        try:
            if comes_back:
                with pytest.raises(RoleReported, match="it was here before"):
                    second.start()
            else:
                second.start()
        finally:
            second.close()
    finally:
        first.close()
    assert set(session.fleet.store.glob("kernelwright-kept-*")) <= before


def test_the_reference_agrees_with_itself_in_pairs(session: TaskSession, shape: OpenShape) -> None:
    """Not that it comes out at 1, which this machine may be too busy for: that it is never called anything else."""
    assert figure(timed(session, shape, twin(TASK)).eager).decision not in ("faster", "slower")
