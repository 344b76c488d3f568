"""Compiling ahead: once, side by side, out of the way of timing, and never what keeps a verdict waiting. Roles are played."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.errors import RoleFailure
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.judging.evaluation import Evaluation
from evaluator.referee.session import compile_ahead
from evaluator.referee.session.compile_ahead import CompileAhead, Work
from evaluator.referee.sides.open_shape import Baseline
from evaluator.request import Request
from tests.evaluator.few_baselines import without_autotune
from tests.evaluator.judging import replaced, task, until_timed

GIB = 1 << 30
NAMES = ("compile_default", "max-autotune")


class Process:
    """A compiling process."""

    def __init__(self) -> None:
        self.dead = False
        self.meanwhile: Any = None
        self.steps: list[str] = []
        self.is_patient = False

    def take_lowest_priority(self) -> None:
        self.is_patient = True

    def freeze(self) -> None:
        self.steps.append("stopped")

    def thaw(self) -> None:
        self.steps.append("continued")

    def stop_others(self) -> int:
        return 0

    def kill(self) -> None:
        self.dead = True

    close = kill


class Hold:
    """The device's lock, held shared; `wants` says that another evaluation waits for it."""

    def __init__(self) -> None:
        self.wants = threading.Event()
        self.gave_way: list[list[list[str]]] = []
        self.processes: list[Process] = []

    def wanted(self) -> bool:
        return self.wants.is_set()

    def give_way(self) -> None:
        self.gave_way.append([list(process.steps) for process in self.processes if not process.dead])
        self.wants.clear()


class Session:
    """A session whose processes compile each baseline in `seconds`; `fails` names the one that breaks a process."""

    def __init__(self, seconds: float = 0.02, fails: str = "", workers: int = 2) -> None:
        self.seconds, self.fails = seconds, fails
        self.hold = Hold()
        self.compiled: list[tuple[int, str]] = []
        self.most = self.now = 0
        self.guard = threading.Lock()
        self.forgotten = 0
        lock = SimpleNamespace(shared=self._shared)
        self.fleet = SimpleNamespace(
            gpu=True,
            compile_workers=workers,
            keeper=None,
            device_lock=lock,
            server=lambda role: None,
            build_headers=lambda: None,
        )

    @contextmanager
    def _shared(self) -> Iterator[Hold]:
        yield self.hold

    def start_process(self, server: str, begun: Callable[[Process], None]) -> Process:
        process = Process()
        self.hold.processes.append(process)
        begun(process)
        return process

    def open_lean(self, process: Process, dims: dict[str, int]) -> Any:
        return SimpleNamespace(dims=dims, inputs=None, side=SimpleNamespace(process=process, dims=dims))

    def close_lean(self, opened: Any) -> None:
        self.forgotten += 1

    def every_baseline(self, shape: Any) -> list[Baseline]:
        return [Baseline(name, name, 1) for name in ("eager", *NAMES)]

    def prepare(self, side: Any, baseline: Baseline) -> str:
        with self.guard:
            self.now += 1
            self.most = max(self.most, self.now)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until and not side.process.dead:
            if side.process.meanwhile is not None:
                side.process.meanwhile(side.process)
            time.sleep(0.002)
        with self.guard:
            self.now -= 1
        if side.process.dead or baseline.name == self.fails:
            side.process.dead = True
            raise RoleFailure("runtime_error", "it crashed")
        with self.guard:
            self.compiled.append((side.dims["rows"], baseline.name))
        return ""


def work(*rows: int, names: tuple[str, ...] = NAMES, needs_bytes: int = 0) -> list[Work]:
    return [Work({"rows": one}, names, needs_bytes) for one in rows]


def ahead_of(session: Session, budget_bytes: int = 0) -> CompileAhead:
    return CompileAhead(session, lambda: int(0.4 * budget_bytes))  # type: ignore[arg-type]


def test_shapes_are_compiled_side_by_side_and_each_baseline_once() -> None:
    session, told = Session(), []
    ahead = ahead_of(session)
    ahead.begin(work(1, 2, names=NAMES[:1]))
    ahead.finish(work(1, 2, 3), lambda done, total: told.append((done, total)))
    assert sorted(session.compiled) == [(row, name) for row in (1, 2, 3) for name in NAMES]
    assert session.most == 2
    assert told[-1] == (6, 6) and told == sorted(told)
    ahead.finish(work(1, 2, 3), lambda done, total: told.append((done, total)))
    assert len(session.compiled) == 6, "nothing is compiled twice"
    assert session.forgotten == len(session.hold.processes)
    assert all(process.dead for process in session.hold.processes)
    ahead.close()


def test_what_is_wanted_now_comes_before_what_is_not() -> None:
    session = Session(workers=1)
    ahead = ahead_of(session)
    ahead.begin(work(1, 2, 3))
    ahead.finish(work(3, names=NAMES[:1]), lambda *_: None)
    assert (3, NAMES[0]) in session.compiled[:3]
    while len(session.compiled) < 6:
        time.sleep(0.005)
    assert len(set(session.compiled)) == 6, "and the rest follows, each once"
    ahead.close()


def test_only_work_that_can_wait_runs_at_the_lowest_priority() -> None:
    """Eight compiling processes made nvcc take 35 s for a candidate, which takes 10 s on a quiet machine (H100, 16 cores)."""
    session = Session(workers=1)
    ahead = ahead_of(session)
    ahead.begin(work(1))
    while len(session.compiled) < 2:
        time.sleep(0.005)
    ahead.finish(work(2), lambda *_: None)
    assert [process.is_patient for process in session.hold.processes] == [True, False]
    ahead.close()


def test_a_process_that_crashes_keeps_nobody_waiting() -> None:
    session = Session(fails=NAMES[0])
    ahead = ahead_of(session)
    ahead.finish(work(1, 2), lambda *_: None)
    assert session.compiled == []
    ahead.close()


def test_processes_stand_still_while_the_device_is_wanted() -> None:
    session = Session(seconds=0.3)
    ahead = ahead_of(session)
    ahead.begin(work(1, 2))
    while session.now < 2:
        time.sleep(0.005)
    session.hold.wants.set()
    ahead.finish(work(1, 2), lambda *_: None)
    assert session.hold.gave_way == [[["stopped"], ["stopped"]]]
    assert all(process.steps == ["stopped", "continued"] for process in session.hold.processes)
    assert len(session.compiled) == 4
    ahead.close()


def test_a_caller_that_keeps_the_device_does_not_wait_for_those_that_want_it() -> None:
    """The other one gets the device when the caller is done, and that needs what is stopped for it."""
    session = Session(seconds=0.2)
    ahead = ahead_of(session)
    kept = threading.Event()
    session.hold.give_way = kept.wait  # type: ignore[assignment,method-assign]
    ahead.begin(work(1, 2))
    while session.now < 2:
        time.sleep(0.005)
    session.hold.wants.set()
    while not all("stopped" in process.steps for process in session.hold.processes):
        time.sleep(0.005)
    ahead.finish(work(1, 2, 3), lambda *_: None, has_device=True)
    assert sorted(session.compiled) == [(row, name) for row in (1, 2, 3) for name in NAMES]
    session.hold.wants.clear()
    kept.set()
    ahead.close()


def test_without_the_lock_the_caller_starts_the_processes() -> None:
    session = Session()

    @contextmanager
    def taken() -> Iterator[Hold]:
        stuck.wait()
        yield session.hold

    stuck = threading.Event()
    session.fleet.device_lock = SimpleNamespace(shared=taken)
    ahead = ahead_of(session)
    ahead.finish(work(1), lambda *_: None, has_device=True)
    assert sorted(session.compiled) == [(1, name) for name in NAMES]
    stuck.set()
    ahead.close()


def test_closing_does_not_wait_for_a_lock_that_the_caller_holds() -> None:
    """An idle task is closed for its memory while another one is timed: its supervisor waits for that to end."""
    session = Session()

    @contextmanager
    def taken() -> Iterator[Hold]:
        held.wait()
        yield session.hold

    held = threading.Event()
    session.fleet.device_lock = SimpleNamespace(shared=taken)
    ahead = ahead_of(session)
    ahead.begin(work(1))
    closing = threading.Thread(target=ahead.close, daemon=True)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()
    held.set()
    assert session.hold.processes == []


def test_memory_that_others_need_ends_the_processes_and_what_waits() -> None:
    session = Session(seconds=30.0)
    ahead = ahead_of(session)
    ahead.begin(work(1, 2, 3, 4))
    while session.now < 2:
        time.sleep(0.005)
    ahead.give_memory_back()
    ahead.finish(work(1, 2), lambda *_: None)
    assert session.compiled == [] and len(session.hold.processes) == 2
    session.seconds = 0.01
    ahead.finish(work(3), lambda *_: None)
    assert sorted(session.compiled) == [(3, name) for name in NAMES], "later work is done"
    ahead.close()


def test_processes_get_no_more_memory_than_there_is_for_them() -> None:
    session = Session(workers=4)
    ahead = ahead_of(session, 100 * GIB)
    ahead.finish(work(1, 2, 3, needs_bytes=30 * GIB), lambda *_: None)
    assert session.most == 1 and len(session.compiled) == 6
    # The session's own process compiles what is too large for one beside all others.
    ahead.finish(work(9, needs_bytes=50 * GIB), lambda *_: None)
    assert len(session.compiled) == 6
    ahead.close()


def test_what_finds_no_memory_is_left_to_the_sessions_process() -> None:
    """And keeps nobody waiting for it."""
    session = Session()
    session.fleet.keeper = SimpleNamespace(free_bytes=lambda: (10 * GIB, 80 * GIB))
    ahead = ahead_of(session, 100 * GIB)
    ahead.finish(work(1, needs_bytes=30 * GIB), lambda *_: None)
    assert session.compiled == []
    ahead.finish(work(2, needs_bytes=5 * GIB), lambda *_: None)
    assert len(session.compiled) == 2
    ahead.close()


def test_closing_ends_what_runs() -> None:
    session = Session(seconds=30.0)
    ahead = ahead_of(session)
    ahead.begin(work(1, 2, 3))
    while session.now < 2:
        time.sleep(0.005)
    began = time.monotonic()
    ahead.close()
    assert time.monotonic() - began < 5.0
    assert all(process.dead for process in session.hold.processes)
    ahead.begin(work(5))
    assert len(session.hold.processes) == 2


@pytest.mark.slow
@pytest.mark.alone
def test_baselines_compile_while_the_candidate_is_checked(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look waits for the longer of both, not for one after the other."""
    source = task("""
        class Model(nn.Module):
            def forward(self, x):
                return torch.tanh(x)
        def get_inputs():
            return [torch.randn(64, 64)]
        def get_init_inputs():
            return []
        """)
    seen: list[set[str]] = []
    checks = Evaluation._check_all

    def watched(evaluation: Evaluation, *arguments: Any) -> None:
        ahead = evaluation.session.ahead
        work = [*ahead._waiting, *ahead._running.values()]
        seen.append({name for one in work for name in one.baselines})
        checks(evaluation, *arguments)

    monkeypatch.setattr(Evaluation, "_check_all", watched)
    request = Request(source, replaced(source), splits=("visible",), shapes={"visible": [{}]})
    without_autotune(core)
    for _ in range(2):
        verdict = until_timed(lambda: core.evaluate(request, lambda *_: None))
        assert verdict.verdict == "accepted", verdict.reason
    assert any("compile" in name for name in seen[0])
    assert seen[-1] == set(), "what is compiled is not compiled again"


def test_the_device_is_given_away_only_when_a_process_that_is_just_being_started_stands_still() -> None:
    session = Session(seconds=0.2)
    starts, starting = session.start_process, threading.Event()

    def slowly(server: str, begun: Callable[[Process], None]) -> Process:
        starting.set()
        time.sleep(0.3)
        return starts(server, begun)

    session.start_process = slowly  # type: ignore[method-assign]
    ahead = ahead_of(session)
    ahead.begin(work(1))
    starting.wait()
    session.hold.wants.set()
    ahead.finish(work(1), lambda *_: None)
    assert session.hold.gave_way == [[["stopped"]]]
    assert len(session.compiled) == 2
    ahead.close()


def test_a_process_that_does_not_stop_is_ended_before_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "_STOP_SECONDS", 0.1)
    session = Session(seconds=30.0)

    class Deaf(Process):
        """One that never looks whether the device is wanted."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, None if name == "meanwhile" else value)

    def deaf(server: str, begun: Callable[[Process], None]) -> Process:
        process = Deaf()
        session.hold.processes.append(process)
        begun(process)
        return process

    session.start_process = deaf  # type: ignore[method-assign]
    ahead = ahead_of(session)
    ahead.begin(work(1))
    while session.now < 1:
        time.sleep(0.005)
    session.hold.wants.set()
    ahead.finish(work(1), lambda *_: None)
    while not session.hold.gave_way:
        time.sleep(0.005)
    assert session.hold.gave_way == [[]], "nothing was left that could run"
    ahead.close()


def test_on_a_cpu_the_background_leaves_a_core_to_the_evaluation_until_it_waits() -> None:
    session = Session(seconds=0.1)
    session.fleet.gpu = False
    ahead = ahead_of(session)
    ahead.begin(work(1, 2, 3, names=NAMES[:1]))
    while len(session.compiled) < 1:
        time.sleep(0.005)
    assert session.most == 1
    ahead.finish(work(2, 3), lambda *_: None)
    assert session.most == 2
    ahead.close()


def test_on_a_cpu_a_process_compiles_shape_after_shape_until_it_is_wanted_no_more() -> None:
    session = Session(workers=1)
    session.fleet.gpu = False
    ahead = ahead_of(session)
    ahead.finish(work(1, 2, 3), lambda *_: None)
    assert len(session.compiled) == 6
    assert len(session.hold.processes) == 1
    session.fails = NAMES[0]
    ahead.finish(work(4, 5), lambda *_: None)
    assert len(session.hold.processes) == 3, "after a crash the next shape gets a new one"
    ahead.close()
