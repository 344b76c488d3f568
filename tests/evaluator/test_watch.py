"""Who is blamed for work on a GPU that goes on while everybody is stopped, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evaluator.errors import RoleFailure
from evaluator.referee.checking import watch
from evaluator.referee.checking.watch import Watch
from evaluator.referee.memory.device_work import Look
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.block import Block
from evaluator.roles.frames import BlockReport

QUIET, BUSY = Look(160.0, busy=False), Look(2400.0, busy=True)


class Process:
    """A candidate whose death is noticed."""

    killed = False

    def kill(self) -> None:
        self.killed = True


class Device:
    """What the keeper would see on a GPU: each look in turn, then what is left for good."""

    def __init__(self, *looks: Look, then: Look = QUIET, until_killed: Process | None = None) -> None:
        self._looks = list(looks)
        self._then = then
        self._until_killed = until_killed

    def look(self) -> Look:
        if self._until_killed is not None:
            return QUIET if self._until_killed.killed else BUSY
        return self._looks.pop(0) if self._looks else self._then


@dataclass
class Turn:
    process: Any
    look: Look | None = None
    ready_ns: int = 0


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_S", 0.02)


def alternate(observed: Watch, *processes: Process, times: int) -> None:
    """One block of each in turn."""
    for _ in range(times):
        for process in processes:
            observed.after(Turn(process))  # type: ignore[arg-type]


def watching(device: Device, candidate: Process) -> Watch:
    return Watch(device, candidate)  # type: ignore[arg-type]


def test_a_kernel_that_ends_with_its_process_is_the_candidates() -> None:
    candidate = Process()
    with pytest.raises(Rejected) as caught:
        watching(Device(until_killed=candidate), candidate).after(Turn(candidate))  # type: ignore[arg-type]
    assert caught.value.finding.rule == "work_off_turn"


def test_another_programs_work_is_nobodys_fault() -> None:
    candidate = Process()
    with pytest.raises(RoleFailure, match="another program"):
        watching(Device(then=BUSY), candidate).after(Turn(candidate))  # type: ignore[arg-type]


def test_a_burst_that_ends_by_itself_accuses_nobody() -> None:
    candidate = Process()
    observed = watching(Device(BUSY, BUSY, QUIET), candidate)
    observed.after(Turn(candidate))  # type: ignore[arg-type]
    assert not candidate.killed


def test_bursts_on_its_own_turn_alone_are_the_candidates() -> None:
    candidate, baseline = Process(), Process()
    observed = watching(Device(*[BUSY, QUIET, QUIET] * 9), candidate)
    alternate(observed, candidate, baseline, times=6)
    with pytest.raises(Rejected, match="again and again"):
        alternate(observed, candidate, baseline, times=3)


def test_bursts_before_a_baseline_had_a_turn_accuse_nobody() -> None:
    """The candidate warms up first, and what other programs left on the GPU falls on its turns alone."""
    candidate, baseline = Process(), Process()
    observed = watching(Device(*[BUSY, QUIET] * 5), candidate)
    alternate(observed, candidate, times=5)
    alternate(observed, candidate, baseline, times=20)
    assert not candidate.killed


def test_a_burst_in_its_turn_is_added_to_its_block() -> None:
    candidate, baseline = Process(), Process()
    observed = watching(Device(BUSY, QUIET, BUSY, QUIET), candidate)
    observed.after(Turn(candidate))  # type: ignore[arg-type]
    assert observed.late_ns() > 0
    observed.after(Turn(baseline))  # type: ignore[arg-type]
    assert observed.late_ns() == 0
    began = Watch(Device(BUSY, QUIET), candidate)  # type: ignore[arg-type]
    began.before(Turn(candidate, BUSY))  # type: ignore[arg-type]
    assert began.late_ns() >= 2_400_000, "with the look that saw it"


def test_bursts_on_everybodys_turn_end_the_measurement() -> None:
    candidate, baseline = Process(), Process()
    observed = watching(Device(*[BUSY, QUIET] * 20), candidate)
    with pytest.raises(RoleFailure, match="another program"):
        alternate(observed, candidate, baseline, times=10)


def test_work_left_behind_is_charged() -> None:
    candidate, baseline = Process(), Process()
    looks = [Look(360.0, busy=False), Look(160.0, busy=False)] * 8
    observed = watching(Device(*looks), candidate)
    assert observed.charge_ns == 0
    alternate(observed, candidate, baseline, times=8)
    assert observed.charge_ns == 200_000


def begin(observed: Watch, process: Process, first_us: float) -> None:
    observed.before(Turn(process, Look(first_us, busy=False)))  # type: ignore[arg-type]


def test_work_that_begins_before_its_clock_is_charged() -> None:
    candidate, baseline = Process(), Process()
    observed = watching(Device(), candidate)
    for wobble_us in (0, 3, 1, 2, 0, 1, 3, 2):
        begin(observed, candidate, 390.0 + wobble_us)
        begin(observed, baseline, 240.0 + wobble_us)
    assert observed.charge_ns == 150_000


def test_what_may_be_chance_is_not_charged() -> None:
    candidate, baseline = Process(), Process()
    observed = watching(Device(), candidate)
    for wobble_us in (0, 9, 3, 6, 1, 4, 8, 2):
        begin(observed, candidate, 244.0 + wobble_us)
        begin(observed, baseline, 240.0 + wobble_us)
    assert observed.charge_ns == 0


def get_ready(observed: Watch, process: Process, ready_us: float, each_us: float, calls: int = 100) -> None:
    report = BlockReport((), (), (), 0)  # type: ignore[arg-type]
    block = Block(report, calls, 0, round(each_us * calls * 1e3), "eager")
    observed.got_ready(Turn(process, ready_ns=round(ready_us * 1e3)), block)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_made_in_the_untimed_calls_is_charged(gpu: bool) -> None:
    candidate, baseline = Process(), Process()
    observed = Watch(Device() if gpu else None, candidate)  # type: ignore[arg-type]
    for wobble_us in (0, 9, 3, 6, 1, 4, 8, 2):
        get_ready(observed, candidate, 200.0 + 16 * 2.0 + 650.0 + wobble_us, 2.0)
        get_ready(observed, baseline, 200.0 + 16 * 8.0 + wobble_us, 8.0)
    assert observed.charge_ns == 650_000


@pytest.mark.parametrize(("mine_us", "theirs_us"), [(2.0, 9.0), (700.0, 500.0), (45.0, 20.0), (5000.0, 31.0)])
def test_untimed_calls_that_take_what_calls_take_are_free(mine_us: float, theirs_us: float) -> None:
    """First calls are a third slower than others, of either side."""
    candidate, baseline = Process(), Process()
    observed = Watch(None, candidate)
    for wobble_us in (0, 9, 3, 6, 1, 4, 8, 2):
        for process, each_us in ((candidate, mine_us), (baseline, theirs_us)):
            warm_us = min(16 * 1.3 * each_us, max(500.0, 1.3 * each_us))
            get_ready(observed, process, 200.0 + warm_us + wobble_us, each_us, max(4, round(2500 / each_us)))
    assert observed.charge_ns == 0
