"""How much of a GPU a process gets, what happens when there is no more, and who is blamed. The driver alone is played here."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evaluator.batch.places import Place, crowded, referees_in, sensible_jobs
from evaluator.content.pools import TensorInput
from evaluator.devices import BACKENDS, CUDA
from evaluator.devices.cuda import memory as device_memory
from evaluator.errors import DeviceFull, RoleFailure
from evaluator.referee.judging import core as core_module
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.judging.evaluation import Evaluation
from evaluator.referee.memory import lending as lent_memory
from evaluator.referee.memory.budget import MemoryBudget, had_its_part, held_most
from evaluator.referee.memory.lending import Lender, ProcessMemory
from evaluator.referee.memory.sizes import (
    MOST_SLOTS,
    MemorySize,
    ShapeNeeds,
    of_compiler,
    of_reference,
    of_shapes,
    split,
    usual,
)
from evaluator.referee.sides import task_inputs
from evaluator.referee.sides.device_side import DeviceSide
from evaluator.request import Request
from evaluator.roles import protocol
from evaluator.roles.process import RoleProcess
from evaluator.roles.turns import Turns
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict, without_measurement

GIB, MIB = 1 << 30, 1 << 20
H200_BYTES = 140 * GIB
SHARE_BYTES = H200_BYTES // 32
MOST = split(SHARE_BYTES, SHARE_BYTES)


class H200:
    """What a budget asks of a device."""

    memory_bytes, share_bytes = H200_BYTES, SHARE_BYTES


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_a_referee_by_itself_gets_what_it_always_got() -> None:
    assert usual(H200_BYTES, SHARE_BYTES, 1) == usual(H200_BYTES, SHARE_BYTES, 2) == MOST


@pytest.mark.parametrize("referees", range(1, 8))
def test_regions_of_all_referees_leave_a_third_of_the_gpu_for_everything_else(referees: int) -> None:
    size = usual(H200_BYTES, SHARE_BYTES, referees)
    assert referees * 4 * size.total_bytes <= H200_BYTES * 2 // 3
    assert referees * 4 * size.total_bytes > 0.99 * H200_BYTES * 2 / 3 or size == MOST


def test_small_shapes_take_little_and_lose_no_call() -> None:
    size = usual(H200_BYTES, SHARE_BYTES, 6)
    small = ShapeNeeds(128 << 10, 64 << 10)
    calls = small.most_calls(size, small.outputs_bytes)
    assert calls == MOST_SLOTS
    needed = of_shapes([(small, calls)])
    assert needed.inputs_bytes == MOST_SLOTS * (128 << 10)
    assert needed.total_bytes < size.total_bytes / 4


@pytest.mark.parametrize("referees", [1, 6])
@pytest.mark.parametrize(
    ("slot_bytes", "outputs_bytes", "peak_bytes"),
    [
        (128, 64, 64),
        (6 * MIB, 3 * MIB, 30 * MIB),
        (28 * MIB, 4096, 0),
        (88 * MIB, 88 * MIB, 88 * MIB),
        (4096, 64 * MIB, 1 * GIB),
        (GIB, 4, 4),
        (8 * GIB, 8 * GIB, 16 * GIB),
    ],
)
def test_blocks_of_one_length_fit_into_every_process(
    referees: int, slot_bytes: int, outputs_bytes: int, peak_bytes: int
) -> None:
    """Seen on an H100: the candidate's process had more memory than the control's, whose slots did not last."""
    size = usual(H200_BYTES, SHARE_BYTES, referees)
    needs, tiny = ShapeNeeds(slot_bytes, outputs_bytes, peak_bytes), ShapeNeeds(512, 512)
    calls = needs.most_calls(size, outputs_bytes)
    for memory in (
        of_reference(needs, size),
        of_shapes([(needs, calls)]),
        of_shapes([(tiny, MOST_SLOTS), (needs, calls)]),
    ):
        assert memory.slots(slot_bytes) >= calls
        # What a call makes lies in the pool beside the outputs of the block.
        assert memory.pool_bytes >= (calls - 1) * outputs_bytes + max(peak_bytes, outputs_bytes)


def test_checks_have_room_for_the_copies_that_they_make() -> None:
    """Behind the pool: those of a call or, when they are gone, those of the two before it."""
    outputs_bytes = 200 * MIB
    needs = ShapeNeeds(4096, outputs_bytes)
    assert not needs.large
    size = of_shapes([(needs, needs.most_calls(MOST, outputs_bytes))])
    assert size.copies_bytes >= 2 * outputs_bytes


@pytest.mark.parametrize(
    ("slot_bytes", "outputs_bytes", "calls", "large"),
    [(GIB, 4, 4, False), (GIB + 1, 4, 1, True), (4096, 256 * MIB, 5, False), (4096, 256 * MIB + 1, 1, True)],
)
def test_a_large_shape_is_called_once_in_a_block(
    slot_bytes: int, outputs_bytes: int, calls: int, large: bool
) -> None:
    needs = ShapeNeeds(slot_bytes, outputs_bytes)
    assert (needs.large, needs.most_calls(MOST, outputs_bytes)) == (large, calls)


def test_a_process_that_compiles_gets_the_inputs_of_one_call_and_next_to_nothing_else() -> None:
    size = of_compiler(ShapeNeeds(8 * GIB, 8 * GIB, 16 * GIB))
    assert size.slots(8 * GIB) == 1 and size.outputs_bytes <= 64 * MIB


@pytest.mark.parametrize(
    ("slot_gib", "peak_gib", "weights_gib", "fits"),
    [(16, 32, 0, True), (64, 64, 0, False), (1, 1, 45, False)],
)
def test_a_shape_for_which_two_processes_have_no_room_is_refused_with_what_it_takes(
    slot_gib: int, peak_gib: int, weights_gib: int, fits: bool
) -> None:
    budget = MemoryBudget(H200(), 1)  # type: ignore[arg-type]
    needs = ShapeNeeds(slot_gib * GIB, peak_gib * GIB, peak_gib * GIB, weights_gib * GIB)
    if fits:
        budget.check(needs, "rows=8")
        return
    taken_gib = slot_gib + peak_gib + weights_gib
    with pytest.raises(RoleFailure, match=rf"at rows=8 one call takes {taken_gib}\.0 GiB") as raised:
        budget.check(needs, "rows=8")
    assert raised.value.word == "task_rejected"


# -- the device ------------------------------------------------------------------------------------------------------


def lendable(inputs_bytes: int, outputs_bytes: int) -> MemorySize:
    """Sizes that the driver hands out as they are."""
    return MemorySize(inputs_bytes, outputs_bytes * 3 // 4, outputs_bytes // 4)


@dataclass
class Driver:
    """A GPU's memory: pieces by handle, with their bytes (a few of them stand for all)."""

    free_bytes: int
    pieces: dict[int, int] = field(default_factory=dict)
    made: int = 0

    def create(self, length_bytes: int) -> tuple[int, int]:
        if length_bytes > self.free_bytes:
            raise device_memory.Exhausted("full")
        self.free_bytes -= length_bytes
        self.made += 1
        self.pieces[self.made] = length_bytes
        return self.made, os.open("/dev/null", os.O_RDONLY)

    def attach(self, handle: int, length_bytes: int) -> int:
        assert self.pieces[handle] == length_bytes
        return handle << 40

    def detach(self, pointer: int, handle: int, length_bytes: int) -> None:
        self.free_bytes += self.pieces.pop(handle)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver(10 * GIB)
    for name in ("create", "attach", "detach"):
        monkeypatch.setattr(device_memory, name, getattr(played, name))
    monkeypatch.setattr(
        device_memory, "as_bytes", lambda pointer, length: torch.full((16,), 7, dtype=torch.uint8)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (played.free_bytes, 10 * GIB))
    monkeypatch.setattr(lent_memory, "_WAIT_SECONDS", 0.3)
    return played


@pytest.fixture
def ended() -> Iterator[int]:
    """A descriptor that can be read, as that of a process that has ended."""
    reading, writing = os.pipe()
    os.write(writing, b"x")
    os.close(writing)
    yield os.dup(reading)
    os.close(reading)


def lent(lender: Lender, gib: int) -> ProcessMemory:
    return lender.process_memory(lendable(gib * GIB, gib * GIB))[0]


def test_used_memory_is_zeroed_before_the_next_process_gets_it(driver: Driver, ended: int) -> None:
    lender = Lender(None)
    memory = lent(lender, 1)
    memory.ended = ended
    memory.close()
    again = lent(lender, 1)
    assert again is memory and driver.made == 2
    assert not again.inputs.bytes.any() and not again.outputs.bytes.any()


def test_memory_of_a_process_that_may_still_live_is_not_used_again(driver: Driver) -> None:
    lender = Lender(None)
    memory = lent(lender, 1)
    reading, writing = os.pipe()
    memory.ended = reading
    memory.close()
    assert lent(lender, 1) is not memory
    os.close(writing)


@pytest.mark.parametrize(("gib", "is_reused"), [(1, True), (2, False)])
def test_memory_that_is_too_large_or_too_small_is_freed(
    driver: Driver, ended: int, gib: int, is_reused: bool
) -> None:
    lender = Lender(None)
    memory = lender.process_memory(lendable(gib * GIB, GIB))[0]
    memory.ended = ended
    memory.close()
    small = lendable(256 * MIB, GIB)
    got = lender.process_memory(small)[0]
    assert (got is memory) == is_reused
    # A process uses what it needs of it, whatever there is.
    assert got.size == small
    assert 10 * GIB - driver.free_bytes == (2 * GIB if is_reused else 1280 * MIB)
    assert lender.process_memory(lendable(GIB, 2 * GIB))[0].size.outputs_bytes == 2 * GIB


def test_a_full_device_first_gets_back_what_nobody_needs(driver: Driver, ended: int) -> None:
    lender = Lender(None)
    idle = lent(lender, 2)
    kept = lent(lender, 2)
    kept.ended = ended
    kept.close()
    given_back: list[str] = []

    def make_room() -> None:
        given_back.append("idle")
        idle.free()

    lender.make_room = make_room
    large = lent(lender, 5)
    assert given_back == ["idle"] and driver.free_bytes == 0
    with pytest.raises(
        DeviceFull,
        match=r"it needs 1\.0 GiB more for a process, and 0\.0 GiB of the GPU's 10\.0 GiB are free",
    ) as raised:
        lent(lender, 1)
    # Nobody's fault, and nothing of it stays behind.
    assert (raised.value.word, raised.value.role) == ("not_judged", "")
    large.free()
    assert driver.free_bytes == 10 * GIB and not driver.pieces


def test_half_of_a_process_memory_is_no_memory(driver: Driver) -> None:
    lender = Lender(None)
    with pytest.raises(DeviceFull):
        lender.process_memory(lendable(6 * GIB, 6 * GIB))
    assert driver.free_bytes == 10 * GIB


def test_memory_that_others_give_back_is_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    lender = Lender(None)
    others = lent(lender, 5)
    monkeypatch.setattr(lent_memory.time, "sleep", lambda seconds: others.free())
    assert lent(lender, 3).size == lendable(3 * GIB, 3 * GIB)


# -- blame -----------------------------------------------------------------------------------------------------------


class Role:
    """A process that holds memory until it is closed."""

    def __init__(self, driver: Driver, holds_bytes: int) -> None:
        self._driver = driver
        self._holds_bytes = holds_bytes
        self._process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
        self.pid = self._process.pid
        driver.free_bytes -= holds_bytes

    def watch_end(self) -> int:
        return os.pidfd_open(self.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._driver.free_bytes += self._holds_bytes


@pytest.mark.parametrize(
    ("its_own_gib", "of_others_gib", "at_fault"), [(9, 1, True), (0, 9, False), (1, 9, False), (0, 1, True)]
)
def test_who_ran_out_of_memory_is_blamed_only_if_there_was_enough(
    driver: Driver, its_own_gib: int, of_others_gib: int, at_fault: bool
) -> None:
    driver.free_bytes -= of_others_gib * GIB
    process: Any = Role(driver, its_own_gib * GIB)
    assert had_its_part(Lender(None), [process]) == at_fault


@pytest.mark.parametrize(
    ("its_own_gib", "of_others_gib", "most"), [(6, 3, True), (4, 5, False), (1, 9, False)]
)
def test_who_left_no_memory_for_the_baseline_held_most_of_it(
    driver: Driver, its_own_gib: int, of_others_gib: int, most: bool
) -> None:
    driver.free_bytes -= of_others_gib * GIB
    process: Any = Role(driver, its_own_gib * GIB)
    assert held_most(Lender(None), process) == most


def _compilers(had_some: bool) -> Any:
    """A session of which processes that compile had some memory, or none."""
    return SimpleNamespace(ahead=SimpleNamespace(give_memory_back=lambda: had_some))


@pytest.mark.parametrize(
    ("referees", "alone", "compilers", "at_fault"),
    [(6, False, False, False), (6, True, False, True), (1, False, False, True), (1, False, True, False), (1, True, True, True)],
)  # fmt: skip
def test_nobody_is_blamed_while_others_give_memory_back(
    driver: Driver, referees: int, alone: bool, compilers: bool, at_fault: bool
) -> None:
    """What came free while we looked may have been another referee's, unless nobody else computes."""
    role = Role(driver, 0)
    judging: Any = object.__new__(Evaluation)
    judging._alone = alone
    lock = SimpleNamespace(exclusive=nullcontext)
    judging.fleet = SimpleNamespace(
        keeper=Lender(None), device_lock=lock, budget=MemoryBudget(H200(), referees)
    )  # type: ignore[arg-type]
    judging.control = SimpleNamespace(close=lambda: None)
    judging.session = _compilers(compilers)
    judging.candidate = SimpleNamespace(process=role)
    try:
        assert judging._was_at_fault(RoleFailure("out_of_memory", "20 MiB", role="candidate")) == at_fault
    finally:
        role.close()


def test_a_reference_without_memory_is_tried_again_with_all_of_the_device(driver: Driver) -> None:
    """Seen on an H100: what others had taken of the card refused the task."""
    judging: Any = object.__new__(Evaluation)
    judging._alone = False
    judging.fleet = SimpleNamespace(keeper=Lender(None), budget=MemoryBudget(H200(), 1))  # type: ignore[arg-type]
    judging.control = SimpleNamespace(close=lambda: None)
    judging.session = _compilers(False)
    assert not judging._was_at_fault(RoleFailure("out_of_memory", "20 MiB", role="reference"))


@pytest.mark.parametrize("word", ["too small", "20 MiB"])
@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_a_pool_that_cannot_grow_beside_others_is_tried_again(driver: Driver, word: str, role: str) -> None:
    """Seen on an H100: a compiled convolution that needs twice what the eager one takes refused the task while others had memory."""
    judging: Any = object.__new__(Evaluation)
    judging.control = SimpleNamespace(close=lambda: None)
    judging.session, judging.candidate = _compilers(False), SimpleNamespace(process=None)
    lock = SimpleNamespace(exclusive=nullcontext)
    failure = RoleFailure("out_of_memory", protocol.TOO_SMALL if word == "too small" else word, role=role)
    for referees, alone, at_fault in ((4, False, False), (4, True, True)):
        judging._alone = alone
        judging.fleet = SimpleNamespace(
            keeper=Lender(None),
            device_lock=lock,
            budget=MemoryBudget(H200(), referees),  # type: ignore[arg-type]
        )
        if not alone or word == "too small":
            assert judging._was_at_fault(failure) == at_fault


@pytest.mark.parametrize(
    ("elapsed_s", "waited", "had", "looks", "taken"),
    [
        (1.0, 0.0, 8, [False, True], 0),
        (99.0, 0.0, 8, [False], 0),
        (99.0, 95.0, 8, [False, True], 0),
        (1.0, 0.0, 3, [False, False, False, True], 12),
        (1.0, 0.0, 0, [False, True], 0),
    ],
)
def test_the_second_look_needs_time_that_is_left(
    elapsed_s: float,
    waited: float,
    had: int,
    looks: list[bool],
    taken: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an evaluation waited for memory is no time of its own. It is alone when twice its parts would be all there are."""
    task, candidate = TaskSource("t", "x = 1\n"), CandidateSource("y = 1\n")
    told: list[bool] = []

    class Crowded:
        """The card is full the first time."""

        again, waited_s, reference_failed = "", waited, False

        def __init__(self, *_: Any, alone: bool, **_more: Any) -> None:
            told.append(alone)
            self.again = "" if alone else "alone"

        def judge(self) -> Verdict:
            made = without_measurement(
                "not_judged",
                "taken by others",
                task={},
                candidate={},
                effort="screen",
                splits=(),
                environment={},
            )
            return replace(made, elapsed_s=elapsed_s)

    monkeypatch.setattr(core_module, "Evaluation", Crowded)
    core: Any = object.__new__(RefereeCore)
    core._lint_reports, core._needs_parts = SimpleNamespace(get=lambda *_: None), {}
    core._sessions = OrderedDict()
    parts = SimpleNamespace(wanted=lambda: False)
    core.fleet = SimpleNamespace(environment=dict, gpu=True, memory_parts=parts)
    core.session = lambda *_: SimpleNamespace(
        process=SimpleNamespace(expires_at=0.0),
        has_served=False,
        shapes={},
        close=lambda: None,
        memory=SimpleNamespace(parts=core._needs_parts.get(task.sha256, had)),
    )
    found = core._judge(Request(task, candidate, deadline_s=10.0), lambda *_: None)
    assert (told, found.verdict) == (looks, "not_judged")
    assert core._needs_parts.get(task.sha256, 0) == taken


# -- how many ----------------------------------------------------------------------------------------------------------


def test_as_many_referees_as_cores_and_memory_serve() -> None:
    assert [referees_in(gib * GIB) for gib in (140, 80, 24, 8)] == [7, 4, 1, 1]
    assert sensible_jobs("cuda", 16, 128 * GIB, 1) == 6
    assert sensible_jobs("cuda", 32, 256 * GIB, 2) == 6
    assert sensible_jobs("cuda", 16, 64 * GIB, 1) == 5
    assert sensible_jobs("cpu", 16, 128 * GIB, 1) == 4
    assert sensible_jobs("cpu", 2, 24 * GIB, 1) == 1


def test_more_referees_than_a_card_has_memory_for_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(BACKENDS, "cuda", replace(CUDA, memory_bytes=lambda uuid: 80 * GIB))

    def seats(count: int) -> list[Place]:
        return [Place(f"GPU-a-{index}", "cuda", "GPU-a", tmp_path, count) for index in range(count)]

    assert crowded(seats(4)) == ""
    assert "5 referees on a GPU with memory for 4" in crowded(seats(5))
    assert crowded([Place("cpu-0", "cpu", None, tmp_path, 9)]) == ""


@pytest.mark.parametrize(
    ("overflowed", "places", "fits"), [(True, [5, 8], True), (True, [5, 80], False), (False, [80], True)]
)
def test_temporaries_may_lie_anywhere_and_outputs_may_not(
    overflowed: bool, places: list[int], fits: bool
) -> None:
    """A library's workspace was larger than what the pool had left, and the reference was refused for its memory (H200)."""
    exchange = SimpleNamespace(overflowed=overflowed, holds=lambda address: address < 10, pool_mib=1)
    outputs = [[SimpleNamespace(data_ptr=lambda at=at: at, numel=lambda: 1)] for at in places]
    host: Any = object.__new__(Turns)
    host._exchange, host._left, host._slots = exchange, [], torch.empty(0)
    with nullcontext() if fits else pytest.raises(torch.OutOfMemoryError, match="too small"):
        host._check_room(outputs)


def test_outputs_of_a_backward_are_results_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as all that a call takes, they asked for 262 GiB for a module that returns 16 MiB."""

    def meta(dtype: str, *shape: int) -> dict[str, Any]:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return {"dtype": dtype, "shape": list(shape), "strides": strides}

    def given(described: dict[str, Any]) -> dict[str, Any]:
        tensor = {
            "meta": described,
            "addresses": [0],
            "kept_bytes": 0,
            "same": False,
            "structure": [],
            "domain": "",
        }
        return {"value": {"tensor": 0}, "tensors": [tensor]}

    def weight(name: str, trained: bool) -> dict[str, Any]:
        return {
            "name": name,
            "meta": meta("float32", 1000),
            "parameter": trained,
            "trained": trained,
            "address": trained,
        }

    answer = {
        "like": None,
        "init": [],
        "inputs": [given(meta("float32", 4096, 512)), given(meta("int64", 4096))],
        "state": [weight("weight", True), weight("mask", False)],
        "redrawn": True,
        "upstream": [{"output": 0, "meta": meta("float32", 4096)}],
        "peak_bytes": 500 << 20,
        "outputs_bytes": 4 * 4096,
    }
    handed = [[torch.zeros(8, dtype=torch.uint8)] * 2] * 2
    monkeypatch.setattr(task_inputs, "_handed_over", lambda *_: handed)
    monkeypatch.setattr(task_inputs, "_upstream", lambda meta, on_device: TensorInput(meta, handed[0]))
    process = cast("RoleProcess", SimpleNamespace(modules={}))
    found = task_inputs.read_inputs(process, answer, cast("Lender", object()), training=False, backward=True)
    assert found.needs.outputs_bytes == 4 * (4096 + 4096 * 512 + 1000)
    assert found.needs.peak_bytes == 1000 << 20 and not found.needs.large
    assert found.needs.gradients_bytes == 4 * (4096 * 512 + 1000)
    assert of_shapes([(found.needs, 100)]).copies_bytes >= 100 * found.needs.gradients_bytes


def test_memory_that_is_too_small_for_outputs_grows_in_both_parts() -> None:
    """Gradients are allocated by autograd's own thread, beside the pool, and are copied: a larger pool alone would not help."""
    lent: list[MemorySize] = []
    side = object.__new__(DeviceSide)
    side._size = MemorySize(MIB, 600 * MIB, 300 * MIB)
    side._lend = lambda size, *, keeps: lent.append(size)  # type: ignore[method-assign]
    side._memory = lambda: SimpleNamespace(size=lent[-1] if lent else side._size)  # type: ignore[method-assign,assignment,return-value]
    side._keeper = cast("Lender", SimpleNamespace(free_bytes=lambda: (8 * GIB, H200_BYTES)))
    full = RoleFailure("out_of_memory", f"{protocol.TOO_SMALL} for the outputs of one block")
    while side.grows_for(full):
        assert len(lent) < 9
    assert (lent[0].pool_bytes, lent[0].copies_bytes) == (900 * MIB, 450 * MIB)
    assert lent[-1].pool_bytes <= 8 * 600 * MIB and lent[-1].outputs_bytes + 2 * GIB <= 8 * GIB
    assert not side.grows_for(RoleFailure("runtime_error", "it raised"))
