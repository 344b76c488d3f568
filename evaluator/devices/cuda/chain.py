"""The chain on a GPU: `chain.cu`, compiled once by the referee, launched from prepared argument cells.

A launch takes about 3 us. Roles get the machine code, because compiling takes 0.36 s in each of them (H200).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluator.devices.cuda import driver

#: Same values as in chain.cu.
_PER_LINK = 8
#: Blocks of a link and threads per block: from the first architecture with clusters on, and before.
_CLUSTERS_FROM = (9, 0)
_CLUSTER, _SINGLE = (8, 512), (16, 256)
_BY_CLOCK, _GOES_ON = -1, -2
_FILL_THREADS = 256
_MASK = (1 << 64) - 1


class _Outputs(ctypes.Structure):
    """`outputs_t` of chain.cu."""

    _fields_ = [("data", ctypes.c_uint64 * _PER_LINK), ("bytes", ctypes.c_uint64 * _PER_LINK)]


_KERNELS = (b"kw_link", b"kw_fill", b"kw_broken")
_loaded: dict[bytes, Any] = {}


def compiled() -> bytes:
    """Machine code of chain.cu for the current device.

    Raises:
        RuntimeError: NVRTC refuses it.
    """
    from torch.cuda._utils import _get_gpu_rtc_library

    nvrtc = _get_gpu_rtc_library()
    source = Path(__file__).with_name("chain.cu").read_bytes()
    program, length = ctypes.c_void_p(), ctypes.c_size_t()

    def call(name: str, *arguments: Any) -> None:
        status = getattr(nvrtc, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with NVRTC error {status}")

    call("nvrtcCreateProgram", ctypes.byref(program), source, b"chain.cu", 0, None, None)
    architecture = "--gpu-architecture=sm_{}{}".format(*torch.cuda.get_device_capability())
    call("nvrtcCompileProgram", program, 1, (ctypes.c_char_p * 1)(architecture.encode()))
    call("nvrtcGetCUBINSize", program, ctypes.byref(length))
    code = ctypes.create_string_buffer(length.value)
    call("nvrtcGetCUBIN", program, code)
    call("nvrtcDestroyProgram", ctypes.byref(program))
    return code.raw


def load(code: bytes) -> None:
    """Loads the result of :func:`compiled` into the current context of this process."""
    cuda = driver.library()
    module = ctypes.c_void_p()
    if cuda.cuModuleLoadData(ctypes.byref(module), code):
        raise RuntimeError("the chain's kernels cannot be loaded")
    for name in _KERNELS:
        function = ctypes.c_void_p()
        if cuda.cuModuleGetFunction(ctypes.byref(function), module, name):
            raise RuntimeError(f"the chain has no kernel {name.decode()}")
        _loaded[name] = function
    launch = cuda.cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    _loaded[b"launch"] = launch


class _Launcher:
    """One kernel with its argument cells.

    They are set before each launch, and the driver copies them during the launch.

    Args:
        kernel: its handle.
        cells: one ctypes object per argument.
    """

    def __init__(self, kernel: Any, cells: tuple[Any, ...]) -> None:
        self.cells = cells
        self._kernel = kernel
        self._pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self._launch = _loaded[b"launch"]

    def __call__(self, width: int, height: int, threads: int, stream: int) -> None:
        status = self._launch(self._kernel, width, height, 1, threads, 1, 1, 0, stream, self._pointers, None)
        if status:
            raise RuntimeError(f"cuLaunchKernel failed with error {status}")


@dataclass(frozen=True)
class Table:
    """What may be replaced in one slot: addresses, sizes and strides, as the kernel's structs on the device.

    Attributes:
        count: number of rows.
        address: of the first.
        memory: keeps them alive; tables made together share it.
    """

    count: int
    address: int
    memory: torch.Tensor | None


def tables(slots: list[list[tuple[int, ...]]]) -> list[Table]:
    """One table per slot, with equal numbers of rows, copied to the device together.

    Args:
        slots: per slot and tensor its address, its pool's address, bytes per item, items, the pool's items, the
            stride, and whether zeros stay.
    """
    count = len(slots[0]) if slots else 0
    if count == 0:
        return [Table(0, 0, None) for _ in slots]
    memory = torch.tensor(slots, dtype=torch.int64).to("cuda")
    step = memory[0].nbytes
    return [Table(count, memory.data_ptr() + index * step, memory) for index in range(len(slots))]


def row_of(tensor: torch.Tensor, pool: torch.Tensor, stride: int, keeps_zeros: int = 0) -> tuple[int, ...]:
    """A row for :func:`tables`."""
    sizes = tensor.element_size(), tensor.numel(), pool.numel()
    return tensor.data_ptr(), pool.data_ptr(), *sizes, stride, keeps_zeros


def _grid() -> tuple[int, int]:
    """Blocks of a link and threads per block, on this device."""
    return _CLUSTER if torch.cuda.get_device_capability() >= _CLUSTERS_FROM else _SINGLE


class States:
    """The chain's states of a block on the device, and the kernel that computes each from the one before.

    Args:
        calls: how many calls the block has.
    """

    def __init__(self, calls: int) -> None:
        self._words = torch.zeros(calls + 3, dtype=torch.int64, device="cuda")
        self._base = self._words.data_ptr()
        # Between two parts of one link. A kernel that refreshes must not write the word that its other blocks
        # begin with.
        self._between = self._base + 8 * (calls + 1)
        pointer, count = ctypes.c_uint64, ctypes.c_int
        # Through the last one, the blocks of a link agree on its start time if they are not a cluster.
        agreed = pointer(self._base + 8 * (calls + 2))
        cells = (_Outputs(), count(), pointer(), count(), pointer(), pointer(), agreed, count())
        self._link = _Launcher(_loaded[b"kw_link"], cells)
        self._grid = _grid()

    def begin(self, state: int) -> None:
        """Sets the state before the first call."""
        self._words[0] = state

    def start(self, table: Table, stream: int, state_at: int) -> None:
        """Refreshes the first call's inputs, with the state stored at an address."""
        self._launch(0, table, state_at, self._base, _GOES_ON, stream)

    def replay(self, states: list[int], table: Table, stream: int) -> None:
        """Refreshes the same inputs with each of these states (as int64 holds them) in turn."""
        self._words[: len(states)] = torch.tensor(states, dtype=torch.int64)
        for at in range(self._base, self._base + 8 * len(states), 8):
            self._launch(0, table, at, at, _GOES_ON, stream)

    def link(
        self,
        call: int,
        outputs: list[tuple[int, int]],
        following: Table | None,
        stream: int,
        when: int = _BY_CLOCK,
    ) -> None:
        """Digests the outputs of ``call`` (addresses and bytes) and refreshes the inputs of the next one.

        Which parts of large outputs are digested depends on the link's start time; ``when`` replaces that time.
        """
        cell = self._link.cells[0]
        before, final = self._base + 8 * call, self._base + 8 * call + 8
        for start in range(0, len(outputs), _PER_LINK):
            part = outputs[start : start + _PER_LINK]
            for index, (address, length_bytes) in enumerate(part):
                cell.data[index] = address
                cell.bytes[index] = length_bytes
            last = start + _PER_LINK >= len(outputs)
            after = final if last else self._between
            self._launch(len(part), following if last else None, before, after, when, stream)
            before, when = after, _GOES_ON

    def _launch(
        self, outputs: int, table: Table | None, before: int, after: int, when: int, stream: int
    ) -> None:
        _, outputs_count, rows, rows_count, from_state, to_state, _, given = self._link.cells
        outputs_count.value = outputs
        rows.value, rows_count.value = (table.address, table.count) if table is not None else (0, 0)
        from_state.value, to_state.value, given.value = before, after, when
        blocks, threads = self._grid
        self._link(blocks, 1, threads, stream)

    def read(self, calls: int) -> list[int]:
        """The states after the first ``calls`` calls, as unsigned 64-bit numbers; waits for the device."""
        return [word & _MASK for word in self._words[1 : calls + 1].tolist()]

    @property
    def first_address(self) -> int:
        """Address of the state after the first call; the others follow."""
        return self._base + 8


@cache
def block_states(calls: int) -> States:
    """Memory for the states of any block of at most so many calls. Allocating it takes 0.1 to 0.2 ms, so it is kept."""
    return States(calls)


def broken(
    addresses: np.ndarray[Any, np.dtype[np.uint64]], lengths_bytes: list[int], states: list[int], stream: int
) -> int:
    """After which calls of a block the state does not follow from the one before and from what the call returned.

    Args:
        addresses: of the outputs (``[call][output]``), in memory that this process may read.
        lengths_bytes: of each output of a call.
        states: the one that the block began with, and those after each call, as unsigned 64-bit numbers.
        stream: address of the stream.
    """
    calls, outputs = addresses.shape
    parts = ([0], lengths_bytes, states, addresses.reshape(-1))
    numbers = np.concatenate([np.array(part, dtype=np.uint64) for part in parts])
    cells = torch.from_numpy(numbers.view(np.int64)).to("cuda")
    pointer, count_at = ctypes.c_uint64, cells.data_ptr()
    lengths_at = count_at + 8
    states_at = lengths_at + 8 * outputs
    data_at = states_at + 8 * (calls + 1)
    arguments = (
        pointer(data_at),
        pointer(lengths_at),
        ctypes.c_int(outputs),
        pointer(states_at),
        pointer(count_at),
    )
    _, threads = _grid()
    _Launcher(_loaded[b"kw_broken"], arguments)(calls, 1, threads, stream)
    return int(cells[0])


def fill(
    target: int,
    stride_bytes: int,
    sources: torch.Tensor,
    numbers: torch.Tensor,
    masks: torch.Tensor | None,
    items: int,
    source_items: int,
    item_bytes: int,
    stream: int,
) -> None:
    """Writes one rolled source after the other, ``stride_bytes`` apart, with the chunks of ``masks`` from another
    one.

    Args:
        target: address of the first.
        stride_bytes: from one to the next.
        sources: addresses on the device, int64.
        numbers: int64, four rows of one number per content: index of the source, offset in items, and the same for
            the source that is mixed in.
        masks: words of one bit per chunk, int64, a row per content; None to mix nothing.
        items: items of each.
        source_items: items of each source, which wraps around at its end.
        item_bytes: bytes of one.
        stream: address of the stream.
    """
    number = ctypes.c_uint64
    cells = tuple(
        number(value)
        for value in (
            target,
            stride_bytes,
            sources.data_ptr(),
            *(row.data_ptr() for row in numbers),
            0 if masks is None else masks.data_ptr(),
            0 if masks is None else masks.shape[1],
            items,
            source_items,
            item_bytes,
        )
    )
    width = max(1, min(-(-items // _FILL_THREADS), 2048))
    _Launcher(_loaded[b"kw_fill"], cells)(width, numbers.shape[1], _FILL_THREADS, stream)
