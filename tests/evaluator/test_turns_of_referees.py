"""Referees side by side: who times does not wait for all of another's checks, and has its cores for itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.timing import cores
from evaluator.timing.exclusive import DeviceLock
from tests.evaluator import judging

pytestmark = pytest.mark.alone

TASK = """
    from kernelbench_tasks import Dim
    DIMS = {"rows": Dim(1, 64, default=4)}

    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    def get_inputs(rows=4):
        return [torch.randn(rows, 8)]

    def get_init_inputs():
        return []
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceLock:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return DeviceLock("test")


def until(condition: object, limit_s: float = 10.0) -> None:
    assert callable(condition)
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_a_shared_holder_sees_who_waits_and_comes_back_after_it(lock: DeviceLock) -> None:
    said: list[str] = []

    def times() -> None:
        with lock.exclusive():
            said.append("timing")
            time.sleep(0.1)
            said.append("timed")

    with lock.shared() as hold:
        assert not hold.wanted()
        other = threading.Thread(target=times)
        other.start()
        until(hold.wanted)
        assert said == []
        hold.give_way()
        said.append("back")
        assert not hold.wanted()
        other.join()
    assert said == ["timing", "timed", "back"]
    with lock.exclusive():
        said.append("nobody is left")


def test_shared_holders_do_not_wait_for_each_other(lock: DeviceLock) -> None:
    with lock.shared() as first, lock.shared() as second:
        assert not first.wanted()
        first.give_way()
        second.give_way()


def test_a_check_of_many_shapes_lets_others_time_between_two(core: RefereeCore) -> None:
    shapes = [{"rows": rows} for rows in range(1, 13)]
    begun: list[int] = []
    entered_after: list[int] = []
    states: list[str] = []

    def times() -> None:
        with core.fleet.device_lock.exclusive():
            entered_after.append(len(begun))
            session = next(iter(core._sessions.values()))
            states.append(Path(f"/proc/{session.process.pid}/stat").read_text().rpartition(")")[2].split()[0])

    other = threading.Thread(target=times)

    def progress(stage: str, done: int, total: int, text: str) -> None:
        if stage != "correctness":
            return
        begun.append(done)
        if len(begun) == 3:
            other.start()
            time.sleep(0.1)  # it is at the gate by now

    task = judging.task(TASK)
    proposal = judging.replaced(task)
    verdict = core.evaluate(
        Request(task, proposal, "screen", ("adversarial",), {"adversarial": shapes}, 60.0), progress
    )
    other.join(10)
    assert verdict.verdict == "accepted", verdict.reason
    assert len(begun) == len(shapes)
    assert entered_after[0] < len(shapes), "it waited for every shape"
    assert states == ["T"], "the reference ran while somebody timed"


@pytest.mark.parametrize(
    ("index", "devices", "count", "apart"),
    [
        (0, 1, 16, {14, 15}),
        (0, 8, 128, set(range(112, 128))),
        (3, 8, 128, set(range(112, 128))),
        (3, 8, 24, {16, 17}),
        (0, 4, 16, set(range(8, 16))),
        (0, 1, 4, None),
        (0, 1, 2, None),
    ],
)
def test_cores_of_devices_are_set_apart_where_there_are_enough(
    index: int, devices: int, count: int, apart: set[int] | None
) -> None:
    every = tuple(range(count))
    left = cores.set_apart(index, devices, every)
    assert left == (None if apart is None else frozenset(every) - apart)
