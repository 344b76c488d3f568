"""The referee's own work on a GPU: fresh contents, copies of outputs, and detection of foreign work.

No untrusted code runs here. Contents are written while every role is stopped, so no role can read them before the
clock starts. Outputs are read directly from memory after the clock has stopped. A kernel that a stopped process
left running is detected by the duration of a tiny kernel: 17 us alone, 0.9 to 2.4 ms while another process
computes (H200, docs/timing.md).
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evaluator.content.pools import Array, Mixed, TensorInput
from evaluator.devices.accelerator import GPU_TYPE, device_chain, torch_gpu
from evaluator.referee.memory.lending import Lender
from evaluator.roles.arena import sealed_text
from evaluator.roles.frames import Addresses

_BUSY_US = 500.0
_TRIES = 5
#: More than a cache holds.
_SCRATCH_BYTES = 160 << 20


@dataclass(frozen=True)
class Look:
    """What the referee's tiny kernel measured.

    Attributes:
        first_us: duration of the first one, including the end of earlier work and the switch from it, and the
            writing of contents if that came before.
        busy: repeated kernels were delayed.
    """

    first_us: float
    busy: bool


class Keeper(Lender):
    """The referee's work on its GPU. One per referee.

    Args:
        library: path of the compiled `pool.c`, None without a C compiler.
    """

    def __init__(self, library: str | None) -> None:
        torch_gpu.init()
        super().__init__(library)
        self._cell = torch.zeros(64, device=GPU_TYPE)
        properties = torch_gpu.get_device_properties(0)
        #: Multiprocessors, and bytes of the second-level cache.
        self.processors, self.cache_bytes = properties.multi_processor_count, properties.L2_cache_size
        self._code = device_chain.compiled()
        device_chain.load(self._code)
        # Allocated at the start: a candidate may take all memory that there is.
        self._scratch = torch.empty(_SCRATCH_BYTES // 4, dtype=torch.float32, device=GPU_TYPE)
        self._draws: dict[int, tuple[TensorInput, list[torch.Tensor], torch.Tensor]] = {}
        self._states = device_chain.States(1)
        self._bits = torch.Generator(device=GPU_TYPE).manual_seed(secrets.randbits(63))
        #: Results of :meth:`link_us` by their parameters: each costs 5 to 10 ms of a timing run's clock.
        self.links_us: dict[tuple[Any, ...], float] = {}
        for _ in range(20):
            self.foreign_us()

    def code(self) -> int:
        """A descriptor of the chain's machine code, for a role."""
        return sealed_text(self._code)

    # -- foreign work ------------------------------------------------------------------------------------------

    def foreign_us(self) -> float:
        """Microseconds that a tiny kernel takes, from launch to end."""
        started = time.perf_counter_ns()
        self._cell.add_(1)
        torch_gpu.synchronize()
        return (time.perf_counter_ns() - started) / 1e3

    def look(self, began_ns: int | None = None) -> Look:
        """Whether foreign work runs on the device now.

        Args:
            began_ns: start of the referee's own work that counts with the first kernel, by
                :func:`time.perf_counter_ns`; now by default.
        """
        began_ns = began_ns or time.perf_counter_ns()
        self.foreign_us()
        first_us = (time.perf_counter_ns() - began_ns) / 1e3
        for _ in range(_TRIES):
            elapsed_us = self.foreign_us()
            if elapsed_us < _BUSY_US:
                return Look(first_us, busy=False)
        return Look(first_us, busy=True)

    def idle_within(self, seconds: float) -> bool:
        """Waits until the device has finished the work of stopped processes, for so long at most; whether it has."""
        until = time.monotonic() + seconds
        while self.look().busy:
            if time.monotonic() > until:
                return False
        return True

    # -- contents ----------------------------------------------------------------------------------------------

    def _on_device(self, tensor: TensorInput) -> torch.Tensor:
        """Device addresses of an input's draws. Draws made on the host are copied there first."""
        known = self._draws.get(id(tensor))
        if known is None:
            draws = [draw if tensor.on_device else upload(draw) for draw in tensor.draws]
            addresses = torch.tensor([draw.data_ptr() for draw in draws], device=GPU_TYPE)
            known = self._draws[id(tensor)] = (tensor, draws, addresses)
        return known[2]

    def forget(self, tensors: list[TensorInput]) -> None:
        """Releases the memory of these inputs' draws."""
        for tensor in tensors:
            self._draws.pop(id(tensor), None)

    def fill(self, targets: list[tuple[TensorInput, int]], stride_bytes: int, drawn: list[Mixed]) -> None:
        """Writes drawn contents; does not wait.

        Args:
            targets: inputs with the addresses of their first contents.
            stride_bytes: from one content of an input to the next.
            drawn: per input what was drawn for it.
        """
        # Draws that are mixed with weight zero are named too, but never read.
        windows = [
            [one.draws, one.offsets, *(one[2:4] if one.masks is not None else one[:2])] for one in drawn
        ]
        numbers = torch.from_numpy(np.array(windows, dtype=np.int64)).to(GPU_TYPE)
        stream = torch_gpu.current_stream().cuda_stream
        for (tensor, target), one, rows in zip(targets, drawn, numbers, strict=True):
            if tensor.turned:
                self._fill_turned(tensor, target, stride_bytes, one)
            elif tensor.size:
                addresses = self._on_device(tensor)
                device_chain.fill(
                    target,
                    stride_bytes,
                    addresses,
                    rows,
                    one.masks,
                    tensor.size,
                    tensor.source_size,
                    tensor.meta.item_bytes,
                    stream,
                )

    def _fill_turned(self, tensor: TensorInput, target: int, stride_bytes: int, drawn: Mixed) -> None:
        self._on_device(tensor)
        draws, none = self._draws[id(tensor)][1], torch.zeros((4, 1), dtype=torch.int64, device=GPU_TYPE)
        for index, (draw, seed) in enumerate(zip(drawn.draws, drawn.offsets, strict=True)):
            content = tensor.turned_on_device(draws[int(draw)], int(seed))
            address = torch.tensor([content.data_ptr()], device=GPU_TYPE)
            sizes = tensor.size, tensor.size, tensor.meta.item_bytes
            device_chain.fill(target + index * stride_bytes, 0, address, none, None, *sizes, _stream())

    def draw_bits(self, rows: int, words: int) -> torch.Tensor:
        """Random 64-bit words, shape (rows, words), int64.

        A content of a gigabyte needs 32 million of these bits.
        """
        least, most = -(1 << 63), (1 << 63) - 1
        return torch.randint(least, most, (rows, words), device=GPU_TYPE, generator=self._bits)

    def refresh(self, rows: list[tuple[int, ...]], states: Sequence[int]) -> None:
        """Replaces elements as the chain does in each of these states, one after the other."""
        table = device_chain.tables([rows])[0]
        device_chain.States(len(states)).replay([_signed(state) for state in states], table, _stream())
        torch_gpu.synchronize()

    def digest(self, outputs: list[torch.Tensor], state: int, when: int) -> int:
        """The chain's state after a call with these outputs (flat bytes) whose link began at ``when``."""
        self._states.begin(_signed(state))
        stream = torch_gpu.current_stream().cuda_stream
        spans = [(output.data_ptr(), output.numel()) for output in outputs]
        self._states.link(0, spans, None, stream, when)
        return self._states.read(1)[0]

    def broken(self, addresses: Addresses, lengths_bytes: list[int], states: list[int]) -> int:
        """After how many calls of a block the claimed state does not follow, see
        :func:`evaluator.devices.cuda.chain.broken`.
        """
        return device_chain.broken(addresses, lengths_bytes, states, _stream())

    def link_us(self, slots: list[list[tuple[int, ...]]], outputs_bytes: list[int]) -> float:
        """Microseconds that the device takes for one link of the chain.

        Args:
            slots: rows for :func:`evaluator.devices.cuda.chain.tables`, one list per slot.
            outputs_bytes: size of each output.
        """
        outputs = [
            torch.empty(max(length, 16), dtype=torch.uint8, device=GPU_TYPE) for length in outputs_bytes
        ]
        tables = device_chain.tables(slots)
        states = device_chain.States(len(tables))
        graph = torch_gpu.CUDAGraph()
        with torch_gpu.graph(graph):
            stream = torch_gpu.current_stream().cuda_stream
            for call, table in enumerate(tables):
                spans = [(t.data_ptr(), length) for t, length in zip(outputs, outputs_bytes, strict=True)]
                states.link(call, spans, table, stream)
        elapsed_us = []
        for _ in range(5):
            start, end = (torch_gpu.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch_gpu.synchronize()
            elapsed_us.append(start.elapsed_time(end) * 1e3 / len(tables))
        return float(statistics.median(elapsed_us))

    def chill(self) -> None:
        """Evicts everything written before from the caches; does not wait."""
        self._scratch.zero_()

    def write_rate(self) -> float:
        """The device's best write rate in bytes per second: to its L2 cache, or through it to memory."""
        rates = []
        for length_bytes, times in ((4 << 20, 32), (16 << 20, 16), (32 << 20, 8), (_SCRATCH_BYTES, 4)):
            part = self._scratch[: length_bytes // 4]
            # Two kernels: which one is quicker depends on the size.
            for write in (part.zero_, lambda part=part: part.fill_(1.0)):
                rates.append(length_bytes / _replayed_s(write, times))
        return max(rates)


def _replayed_s(work: Callable[[], object], times: int) -> float:
    """Best time in seconds for some device work, repeated without waiting for the host."""
    work()
    graph = torch_gpu.CUDAGraph()
    with torch_gpu.graph(graph):
        for _ in range(times):
            work()
    elapsed_ms = []
    for _ in range(4):
        start, end = (torch_gpu.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch_gpu.synchronize()
        elapsed_ms.append(start.elapsed_time(end))
    return float(min(elapsed_ms)) / 1e3 / times


def upload(values: Array) -> torch.Tensor:
    """Host values as flat bytes on the device."""
    return torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(-1)).to(GPU_TYPE)


def _stream() -> int:
    return int(torch_gpu.current_stream().cuda_stream)


def _signed(state: int) -> int:
    """A 64-bit state as torch's int64 holds it."""
    return state - (1 << 64) if state >= 1 << 63 else state
