"""The referee's own work on a GPU: memory for the roles, fresh contents, copies of outputs, and a watch for foreign work.

Nothing here runs anybody else's code. Contents are written while every role is stopped, so nobody can read them before
the clock starts; outputs are read in the memory itself after the clock has stopped. That no kernel goes on meanwhile,
which a stopped process may have left behind, is seen by the time that a tiny kernel of ours takes: 17 us alone, 0.9 to
2.4 ms while another process computes (H200, docs/timing.md).
"""

from __future__ import annotations

import math
import os
import select
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evaluator.content.pools import Array, TensorInput
from evaluator.errors import DeviceFull
from evaluator.referee.memory_size import POOL_SHARE, MemorySize
from evaluator.roles import device_chain, device_memory
from evaluator.roles.arena import sealed_text
from evaluator.roles.device_chain import States

_BUSY_US = 500.0
_TRIES = 5
_SPARE_MEMORIES = 1
#: How long memory is waited for that others are about to give back: that of a killed process comes with the end of its context.
_WAIT_SECONDS, _LOOK_SECONDS = 10.0, 0.1
#: More than a cache holds.
_SCRATCH_BYTES = 160 << 20


@dataclass
class Region:
    """Device memory shared with one role.

    Attributes:
        descriptor: what the role gets; closed with the region.
        length_bytes: its size.
        bytes: our view of it, uint8.
    """

    descriptor: int
    length_bytes: int
    bytes: torch.Tensor
    pointer: int
    _handle: int

    def close(self) -> None:
        """Gives up our mapping; the memory goes with the role's."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            del self.bytes
            device_memory.detach(self.pointer, self._handle, self.length_bytes)


@dataclass(frozen=True)
class Look:
    """What a tiny kernel of ours met.

    Attributes:
        first_us: how long the first one took: with the end of whatever ran, and the switch from it to us.
        busy: that one after the other was held up.
    """

    first_us: float
    busy: bool


@dataclass
class ProcessMemory:
    """What one process shares with the referee over all shapes.

    Attributes:
        inputs: the slots; those of all shapes lie over each other.
        outputs: the exchange.
        owner: number of the shape whose contents lie in the slots.
        keeper: who gets it back.
        size: what its process may use of it; memory that has been used before may be larger.
        ended: a descriptor that can be read once every process which could hold the memory has ended; -1 where nobody
            can tell, and then it is not used again.
    """

    inputs: Region
    outputs: Region
    keeper: Keeper
    size: MemorySize
    owner: int = 0
    ended: int = -1

    def close(self) -> None:
        """Gives it back; the process has been killed."""
        self.keeper.take_back(self)

    def free(self) -> None:
        """Gives up our mappings."""
        if self.ended >= 0:
            os.close(self.ended)
        self.inputs.close()
        self.outputs.close()


class Keeper:
    """One per referee of a GPU.

    Args:
        library: path of the compiled `pool.c`, None without a C compiler.
    """

    def __init__(self, library: str | None) -> None:
        torch.cuda.init()
        self._library = library
        #: Called when the device is full: gives back what nobody needs just now.
        self.make_room: Callable[[], None] = lambda: None
        self._cell = torch.zeros(64, device="cuda")
        self._code = device_chain.compiled()
        device_chain.load(self._code)
        # Kept from the start: a candidate may take all the memory that there is.
        self._scratch = torch.empty(_SCRATCH_BYTES // 4, dtype=torch.float32, device="cuda")
        self._draws: dict[int, tuple[TensorInput, list[torch.Tensor], torch.Tensor]] = {}
        self._states = States(1)
        self._spare: list[ProcessMemory] = []
        for _ in range(20):
            self.foreign_us()

    # -- memory ------------------------------------------------------------------------------------------------

    def region(self, length_bytes: int) -> Region:
        """Device memory that a role can be given.

        Raises:
            DeviceFull: the device has none left, and none was given back in time.
        """
        length_bytes = device_memory.rounded(length_bytes)
        # The driver's functions need a context, which torch gives to a thread with its first call.
        self.wait()
        handle, descriptor = self._created(length_bytes)
        pointer = device_memory.attach(handle, length_bytes)
        return Region(
            descriptor, length_bytes, device_memory.as_bytes(pointer, length_bytes), pointer, handle
        )

    def _created(self, length_bytes: int) -> tuple[int, int]:
        ends_at = math.inf
        while True:
            try:
                return device_memory.create(length_bytes)
            except device_memory.Exhausted:
                if time.monotonic() > ends_at:
                    sentence = f"the GPU has no {length_bytes >> 20} MiB left for a process to be judged in"
                    raise DeviceFull("not_judged", sentence) from None
            if ends_at == math.inf:
                ends_at = time.monotonic() + _WAIT_SECONDS
                self.give_back()
            else:
                time.sleep(_LOOK_SECONDS)

    def give_back(self) -> None:
        """Frees what is kept for later: memory of ended processes, what others can do without, torch's own reserve."""
        self.make_room()
        while self._spare:
            self._spare.pop().free()
        torch.cuda.empty_cache()

    @staticmethod
    def free_bytes() -> tuple[int, int]:
        """What nobody has of the device's memory, and all of it."""
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return int(free_bytes), int(total_bytes)

    def code(self) -> int:
        """A descriptor of the chain's machine code, for a role."""
        return sealed_text(self._code)

    def process_memory(self, size: MemorySize) -> tuple[ProcessMemory, dict[str, Any]]:
        """Memory for a process, and what it must be told with the two descriptors (outputs first).

        Raises:
            DeviceFull: see :meth:`region`.
        """
        memory = self._used_before(size)
        if memory is None:
            inputs = self.region(size.inputs_bytes)
            try:
                memory = ProcessMemory(inputs, self.region(size.outputs_bytes), self, size)
            except BaseException:
                inputs.close()
                raise
        return memory, {
            "outputs_bytes": memory.outputs.length_bytes,
            "inputs_bytes": memory.inputs.length_bytes,
            "pool_bytes": device_memory.rounded(int(size.outputs_bytes * POOL_SHARE)),
            "library": self._library,
        }

    def take_back(self, memory: ProcessMemory) -> None:
        """Keeps the memory of a process that has been killed, for another: making it anew takes 0.15 s (H200)."""
        if memory.ended < 0 or len(self._spare) >= _SPARE_MEMORIES:
            memory.free()
        else:
            self._spare.append(memory)

    def _used_before(self, size: MemorySize) -> ProcessMemory | None:
        """Memory of a process that is gone, with nothing left in it.

        What is far too large, or too small, is freed: whoever comes next will be like this one.
        """
        for memory in list(self._spare):
            if not MemorySize(memory.inputs.length_bytes, memory.outputs.length_bytes).serves(size):
                self._spare.remove(memory)
                memory.free()
                continue
            ready, _, _ = select.select([memory.ended], [], [], 0)
            if ready:
                self._spare.remove(memory)
                os.close(memory.ended)
                memory.ended, memory.owner, memory.size = -1, 0, size
                for region in (memory.inputs, memory.outputs):
                    region.bytes.zero_()
                self.wait()
                return memory
        return None

    # -- foreign work ------------------------------------------------------------------------------------------

    def foreign_us(self) -> float:
        """Microseconds that a tiny kernel takes, from the launch to its end."""
        started = time.perf_counter_ns()
        self._cell.add_(1)
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - started) / 1e3

    def look(self) -> Look:
        """Whether anybody else's work runs on the device now."""
        first_us = self.foreign_us()
        for _ in range(_TRIES):
            elapsed_us = self.foreign_us()
            if elapsed_us < _BUSY_US:
                return Look(first_us, busy=False)
        return Look(first_us, busy=True)

    # -- contents ----------------------------------------------------------------------------------------------

    def _on_device(self, tensor: TensorInput) -> torch.Tensor:
        """The addresses of an input's draws on the device."""
        known = self._draws.get(id(tensor))
        if known is None:
            draws = [upload(draw) for draw in tensor.draws]
            addresses = torch.tensor([draw.data_ptr() for draw in draws], device="cuda")
            known = self._draws[id(tensor)] = (tensor, draws, addresses)
        return known[2]

    def forget(self, tensors: list[TensorInput]) -> None:
        """Gives the memory of these inputs' draws back."""
        for tensor in tensors:
            self._draws.pop(id(tensor), None)

    def fill(
        self, targets: list[tuple[TensorInput, int]], stride_bytes: int, drawn: list[tuple[Array, Array]]
    ) -> None:
        """Writes drawn contents; does not wait.

        Args:
            targets: inputs with the addresses of their first contents.
            stride_bytes: from one content of an input to the next.
            drawn: per input the indices of its draws, and offsets in elements.
        """
        numbers = torch.from_numpy(np.array(drawn, dtype=np.int64)).to("cuda")
        stream = torch.cuda.current_stream().cuda_stream
        for (tensor, target), (draws, rolls) in zip(targets, numbers, strict=True):
            source = tensor.draws[0]
            if source.size:
                addresses = self._on_device(tensor)
                device_chain.fill(
                    target, stride_bytes, addresses, draws, rolls, source.size, source.itemsize, stream
                )

    def refresh(self, rows: list[tuple[int, int, int, int, int, int]], states: Sequence[int]) -> None:
        """Replaces elements as the chain does in each of these states, one after the other."""
        table = device_chain.tables([rows])[0]
        States(len(states)).replay([_signed(state) for state in states], table, _stream())
        torch.cuda.synchronize()

    def digest(self, outputs: list[torch.Tensor], state: int) -> int:
        """The chain's state after a call with these outputs (flat bytes)."""
        self._states.begin(_signed(state))
        stream = torch.cuda.current_stream().cuda_stream
        self._states.link(0, [(output.data_ptr(), output.numel()) for output in outputs], None, stream)
        return self._states.read()[0]

    def link_us(
        self, slots: list[list[tuple[int, int, int, int, int, int]]], outputs_bytes: list[int]
    ) -> float:
        """Microseconds that the device takes for one link of the chain.

        Args:
            slots: rows for :func:`evaluator.roles.device_chain.tables`, one list per slot.
            outputs_bytes: size of each output.
        """
        outputs = [torch.empty(max(length, 16), dtype=torch.uint8, device="cuda") for length in outputs_bytes]
        tables = device_chain.tables(slots)
        states = States(len(tables))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream().cuda_stream
            for call, table in enumerate(tables):
                spans = [(t.data_ptr(), length) for t, length in zip(outputs, outputs_bytes, strict=True)]
                states.link(call, spans, table, stream)
        elapsed_us = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            elapsed_us.append(start.elapsed_time(end) * 1e3 / len(tables))
        return float(statistics.median(elapsed_us))

    def write_rate(self) -> float:
        """Bytes per second that the device writes at its best: to its L2 cache, or through it to memory."""
        rates = []
        for length_bytes, times in ((4 << 20, 32), (16 << 20, 16), (32 << 20, 8), (_SCRATCH_BYTES, 4)):
            part = self._scratch[: length_bytes // 4]
            # Two kernels: which of them is the quicker one depends on the size.
            for write in (part.zero_, lambda part=part: part.fill_(1.0)):
                rates.append(length_bytes / _replayed_s(write, times))
        return max(rates)

    @staticmethod
    def wait() -> None:
        """Until all of our own work is done."""
        torch.cuda.synchronize()


def _replayed_s(work: Callable[[], object], times: int) -> float:
    """Seconds that some device work takes at its best, one after the other without waiting for the host."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    elapsed_ms = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        elapsed_ms.append(start.elapsed_time(end))
    return float(min(elapsed_ms)) / 1e3 / times


def upload(values: Array) -> torch.Tensor:
    """Host values as flat bytes on the device."""
    return torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(-1)).to("cuda")


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def _signed(state: int) -> int:
    """A 64-bit state as torch's int64 holds it."""
    return state - (1 << 64) if state >= 1 << 63 else state
