"""Device memory that a referee lends to processes: allocated for each, zeroed and reused, released when the device
is full.
"""

from __future__ import annotations

import gc
import math
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from evaluator.devices.accelerator import device_memory, torch_gpu
from evaluator.errors import DeviceFull
from evaluator.referee.memory.sizes import MemorySize
from evaluator.roles.gate import Gate

_SPARE_MEMORIES, _MOST_SPARE_BYTES = 1, 2 << 30
#: How long to wait for memory that is about to be released: a killed process's memory returns when its context
#: ends.
_WAIT_SECONDS, _LOOK_SECONDS = 10.0, 0.1


@dataclass(eq=False)
class Region:
    """Device memory shared with one role.

    Attributes:
        descriptor: what the role gets; closed with the region.
        length_bytes: its size.
        bytes: the referee's view of it, uint8.
    """

    descriptor: int
    length_bytes: int
    bytes: torch.Tensor
    pointer: int
    _handle: int

    def close(self) -> None:
        """Unmaps it here. The memory is released when the role ends."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            del self.bytes
            device_memory.detach(self.pointer, self._handle, self.length_bytes)


@dataclass(eq=False)
class ProcessMemory:
    """The memory that one process shares with the referee over all shapes.

    Attributes:
        inputs: the slots; those of all shapes overlap.
        outputs: the exchange.
        owner: number of the shape whose contents are in the slots.
        lender: gets it back.
        size: what its process may use of it; reused memory may be larger.
        gate: in front of its captured blocks.
        ended: a descriptor that becomes readable once every process that could hold the memory has ended; -1 if
            that is unknown, and then the memory is not reused.
        returned: where the outputs of its last call at a large shape are; None before the first one.
    """

    inputs: Region
    outputs: Region
    lender: Lender
    size: MemorySize
    gate: Gate = field(default_factory=Gate)
    owner: int = 0
    ended: int = -1
    returned: list[torch.Tensor] | None = None

    @property
    def pool_bytes(self) -> int:
        """How much of the outputs' memory, from its start, belongs to torch's pool."""
        return device_memory.rounded(self.size.pool_bytes)

    def close(self) -> None:
        """Returns it to the lender. The process has been killed."""
        self.gate.close()
        self.lender.take_back(self)

    def free(self) -> None:
        """Unmaps it here."""
        if self.ended >= 0:
            os.close(self.ended)
        self.inputs.close()
        self.outputs.close()

    def can_serve(self, size: MemorySize) -> bool:
        """Whether this memory can serve a request for ``size`` without wasting much."""
        inputs_bytes, outputs_bytes = self.inputs.length_bytes, self.outputs.length_bytes
        enough = inputs_bytes >= size.inputs_bytes and outputs_bytes >= _outputs_bytes(size)
        return enough and inputs_bytes + outputs_bytes <= 2 * size.total_bytes

    def is_free(self) -> bool:
        """Whether every process that could hold it is gone."""
        return bool(select.select([self.ended], [], [], 0)[0])


def _gib(length_bytes: int) -> str:
    return f"{length_bytes / (1 << 30):.1f} GiB"


def _outputs_bytes(size: MemorySize) -> int:
    """Bytes of the exchange, whose pool ends on a boundary of the driver's pieces."""
    return device_memory.rounded(size.pool_bytes) + size.copies_bytes


class Lender:
    """Memory for the processes of one referee.

    Args:
        library: path of the compiled `pool.c`, None without a C compiler.
    """

    def __init__(self, library: str | None) -> None:
        self._library = library
        #: Called when the device is full: releases what is not needed at present.
        self.make_room: Callable[[], None] = lambda: None
        self._spare: list[ProcessMemory] = []
        #: A control is prepared while the candidate is checked.
        self._guard = threading.Lock()

    @staticmethod
    def wait() -> None:
        """Waits until all of the referee's own work is done."""
        torch_gpu.synchronize()

    def region(self, length_bytes: int) -> Region:
        """Allocates device memory to share with a role.

        Raises:
            DeviceFull: the device has no free memory, and none was released in time.
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
                    free_bytes, total_bytes = self.free_bytes()
                    sentence = (
                        f"it needs {_gib(length_bytes)} more for a process, and {_gib(free_bytes)} of the GPU's "
                        f"{_gib(total_bytes)} are free"
                    )
                    raise DeviceFull("not_judged", sentence) from None
            if ends_at == math.inf:
                self.give_back()
                ends_at = time.monotonic() + _WAIT_SECONDS
            else:
                time.sleep(_LOOK_SECONDS)

    def give_back(self) -> None:
        """Frees what is kept for later: memory of ended processes, what others can do without, torch's own
        reserve.
        """
        self.make_room()
        with self._guard:
            spare, self._spare = self._spare, []
        for memory in spare:
            memory.free()
        self.trim(collect=True)

    @staticmethod
    def trim(*, collect: bool = False) -> None:
        """Releases torch's reserve, which other processes cannot use.

        With ``collect``, also memory held by reference cycles.
        """
        if collect:
            gc.collect()
        torch_gpu.empty_cache()

    @staticmethod
    def free_bytes() -> tuple[int, int]:
        """Free bytes of the device's memory, and its total."""
        free_bytes, total_bytes = torch_gpu.mem_get_info()
        return int(free_bytes), int(total_bytes)

    def process_memory(self, size: MemorySize) -> tuple[ProcessMemory, dict[str, Any]]:
        """Memory for a process, and what it must be told with the two descriptors (outputs first).

        Raises:
            DeviceFull: see :meth:`region`.
        """
        memory = self._used_before(size)
        if memory is None:
            inputs = self.region(size.inputs_bytes)
            try:
                memory = ProcessMemory(inputs, self.region(_outputs_bytes(size)), self, size)
            except BaseException:
                inputs.close()
                raise
        return memory, {
            "outputs_bytes": memory.outputs.length_bytes,
            "inputs_bytes": memory.inputs.length_bytes,
            "pool_bytes": memory.pool_bytes,
            "library": self._library,
        }

    def take_back(self, memory: ProcessMemory) -> None:
        """Keeps a killed process's memory for another process: a new allocation takes 0.15 s (H200)."""
        with self._guard:
            small = memory.size.total_bytes <= _MOST_SPARE_BYTES
            if small and memory.ended >= 0 and len(self._spare) < _SPARE_MEMORIES:
                self._spare.append(memory)
                return
        memory.free()

    def _used_before(self, size: MemorySize) -> ProcessMemory | None:
        """Zeroed memory of an ended process.

        Memory that is far too large or too small is freed, because the next process will probably be like this
        one.
        """
        with self._guard:
            found = next(
                (memory for memory in self._spare if memory.can_serve(size) and memory.is_free()), None
            )
            unfit = [memory for memory in self._spare if not memory.can_serve(size)]
            self._spare = [memory for memory in self._spare if memory is not found and memory not in unfit]
        for memory in unfit:
            memory.free()
        if found is None:
            return None
        os.close(found.ended)
        found.ended, found.owner, found.size, found.gate = -1, 0, size, Gate()
        found.returned = None
        for region in (found.inputs, found.outputs):
            region.bytes.zero_()
        self.wait()
        return found
