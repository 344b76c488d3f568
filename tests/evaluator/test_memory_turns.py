"""Referees that share a GPU take its memory in parts: each as many as its task needs, and what needs many is not overtaken."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.description import Description
from evaluator.errors import DeviceFull, RoleFailure
from evaluator.referee.judging import core as core_module
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.memory.budget import MemoryBudget
from evaluator.referee.memory.sizes import ShapeNeeds
from evaluator.referee.session import task_memory
from evaluator.referee.session.task_memory import MoreMemoryNeeded, TaskMemory
from evaluator.sources import TaskSource
from evaluator.timing.memory_parts import PARTS, Held, MemoryParts

GIB = 1 << 30


class H100:
    """What a budget asks of a device."""

    memory_bytes, share_bytes = 79 * GIB, 3 * GIB


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryParts:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return MemoryParts("GPU-0")


def taken(parts: MemoryParts, count: int) -> Held:
    held = parts.take(count)
    assert held is not None
    return held


def budget(referees: int) -> MemoryBudget:
    return MemoryBudget(H100(), referees)  # type: ignore[arg-type]


def test_what_needs_many_parts_waits_for_those_that_have_them_and_is_not_overtaken(
    parts: MemoryParts,
) -> None:
    first, second = taken(parts, 6), taken(parts, 6)
    order: list[str] = []

    def takes(name: str, count: int) -> threading.Thread:
        def work() -> None:
            held = taken(parts, count)
            order.append(name)
            held.close()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    assert not parts.wanted()
    many = takes("many", PARTS)
    while not parts.wanted():
        time.sleep(0.005)
    few = takes("few", 1)
    first.close()
    time.sleep(0.1)
    assert order == [] and parts.take_now(1) is None
    second.close()
    many.join()
    few.join()
    assert order == ["many", "few"] and not parts.wanted()


def test_parts_of_a_killed_process_are_free_again(parts: MemoryParts, tmp_path: Path) -> None:
    program = (
        f"import tempfile, time; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from evaluator.timing.memory_parts import MemoryParts\n"
        "held = MemoryParts('GPU-0').take(16); print('taken', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "taken\n"
        assert parts.take_now(1) is None
        child.kill()
    held = taken(parts, PARTS)
    assert held.count == PARTS
    held.close()


def test_a_wait_that_takes_too_long_ends(parts: MemoryParts, monkeypatch: pytest.MonkeyPatch) -> None:
    held = taken(parts, 10)
    assert parts.take(8, 0.05) is None and not parts.wanted()
    monkeypatch.setattr(task_memory, "_MOST_WAIT_SECONDS", 0.05)
    memory = TaskMemory(SimpleNamespace(gpu=True, budget=budget(1), memory_parts=parts, keeper=None))  # type: ignore[arg-type]
    with pytest.raises(DeviceFull, match="try again later"):
        memory.take(8, lambda: None)
    held.close()
    memory.take(8, lambda: None)
    assert memory.parts == 8 and memory.held_s >= 0.0
    memory.give_back()


@pytest.mark.parametrize("referees", [1, 4, 16, 17, 100])
def test_every_referee_begins_with_a_part(referees: int) -> None:
    assert 1 <= budget(referees).parts <= PARTS // 2
    assert budget(referees).compilers_bytes(1, 0) > 0


def test_what_is_kept_of_ended_processes_goes_before_the_parts(parts: MemoryParts) -> None:
    """Seen on an H100: referees that waited for parts kept gigabytes, which the one that had the parts counted on."""
    seen: list[bool] = []
    keeper = SimpleNamespace(give_back=lambda: seen.append(parts.take_now(PARTS) is None))
    fleet: Any = SimpleNamespace(gpu=True, budget=budget(4), memory_parts=parts, keeper=keeper)
    memory = TaskMemory(fleet)
    memory.give_back()
    assert seen == []
    memory.take(4, lambda: None)
    memory.take(4, lambda: None)
    memory.give_back()
    assert seen == [True]


@pytest.mark.parametrize(
    "needs",
    [
        ShapeNeeds(GIB // 2, GIB // 5, 5 * GIB // 2, GIB // 3),
        ShapeNeeds(0, 0, 0, 2 * GIB),
        ShapeNeeds(0, 0, 0),
    ],
)
def test_small_shapes_take_what_their_processes_get(needs: ShapeNeeds) -> None:
    """The first is Mamba2 at its own size: on an H100 it took four times what was thought, and all else ran out of memory."""
    assert not needs.large
    others = 2 * needs.least(2).total_bytes + needs.least(2, "reference").total_bytes
    assert needs.wanted_bytes >= others + 3 * needs.weights_bytes
    assert ShapeNeeds(0, 0, 0, 15 * GIB).fits(60 * GIB), "but no task is refused for that"


def test_a_part_is_had_once(parts: MemoryParts) -> None:
    held = taken(parts, 3)
    assert held.count == 3
    rest = parts.take_now(PARTS - 3)
    assert rest is not None and rest.count == PARTS - 3
    assert parts.take_now(1) is None
    rest.close()
    held.close()


def test_a_task_begins_with_a_usual_number_and_is_told_when_it_needs_more(parts: MemoryParts) -> None:
    fleet: Any = SimpleNamespace(gpu=True, budget=budget(4), memory_parts=parts, keeper=None)
    memory = TaskMemory(fleet)
    memory.check([ShapeNeeds(40 * GIB, 0, 0)])  # it has none yet
    memory.take(fleet.budget.parts, lambda: None)
    assert memory.parts == 4
    memory.check([ShapeNeeds(GIB, GIB, GIB)])
    heavy = ShapeNeeds(6 * GIB, 6 * GIB, 6 * GIB)
    with pytest.raises(MoreMemoryNeeded) as more:
        memory.check([heavy])
    assert 4 < more.value.parts < PARTS
    asked: list[str] = []
    other = taken(parts, PARTS - 4)
    timer = threading.Timer(0.1, other.close)
    timer.start()
    memory.take(more.value.parts, lambda: asked.append("room"))
    assert memory.parts == more.value.parts and asked == ["room"], "its own parts were given back first"
    memory.give_back()
    assert parts.take_now(PARTS) is not None


def test_processes_that_compile_are_part_of_what_a_task_takes(parts: MemoryParts) -> None:
    needs = [ShapeNeeds(6 * GIB, 6 * GIB, 6 * GIB)]
    for referees in (1, 4):
        taken = budget(referees).parts_for(needs)
        compilers = budget(referees).compilers_bytes(taken, needs[0].wanted_bytes)
        assert compilers + needs[0].wanted_bytes <= taken * H100.memory_bytes / PARTS
        assert compilers > 5 * GIB
    assert budget(4).parts_for([ShapeNeeds(200 * GIB, 0, 0)]) == PARTS
    assert TaskMemory(SimpleNamespace(gpu=False, budget=budget(1))).compilers_bytes() == 0  # type: ignore[arg-type]


def test_waiting_for_memory_while_a_task_is_looked_at_is_no_time_of_its_candidate(parts: MemoryParts) -> None:
    core: Any = object.__new__(RefereeCore)
    core.fleet = SimpleNamespace(gpu=True, budget=budget(4), memory_parts=parts, keeper=None)
    core._needs_parts, core._waited_s, core._sessions = {}, 0.0, {}
    memory = TaskMemory(core.fleet)
    session: Any = SimpleNamespace(memory=memory, shapes={}, task=SimpleNamespace(sha256="t"))
    other = taken(parts, PARTS)
    threading.Timer(0.2, other.close).start()
    waited_s = core._take_memory(session)
    assert waited_s >= 0.15 and core._waited_s == waited_s and memory.parts == core.fleet.budget.parts
    assert core._take_memory(session) < 0.1
    memory.give_back()


@pytest.mark.parametrize("enough", [True, False])
def test_a_task_that_cannot_be_described_beside_others_is_described_alone(
    parts: MemoryParts, monkeypatch: pytest.MonkeyPatch, enough: bool
) -> None:
    core: Any = object.__new__(RefereeCore)
    core.fleet = SimpleNamespace(gpu=True, budget=budget(4), memory_parts=parts, keeper=None)
    core._needs_parts, core._waited_s, core._sessions = {}, 0.0, {}
    task = TaskSource("t", "")
    held: list[int] = []

    def opened(*_: object) -> Any:
        return SimpleNamespace(
            memory=TaskMemory(core.fleet),
            shapes={},
            task=task,
            process=SimpleNamespace(expires_at=0.0),
            compile_in_background=lambda shapes: None,
        )

    def described(session: Any, traffic: None) -> Description:
        held.append(session.memory.parts)
        session.memory.give_back()
        if len(held) == 1 or not enough:
            raise RoleFailure("out_of_memory", "it asked for more memory than the limit allows")
        return Description()

    monkeypatch.setattr(core_module, "describe", described)
    core.session, core._drop = opened, lambda _: None
    assert core._describe(task, 60.0, None).ok == enough
    assert held == [core.fleet.budget.parts, PARTS]
