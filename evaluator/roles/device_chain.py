"""The chain on a GPU: `chain.cu` through NVRTC, launched straight from prepared argument arrays (about 3 us each)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

_THREADS = 256
_MASK = (1 << 64) - 1


@cache
def _kernels() -> tuple[Any, Any, Any]:
    source = Path(__file__).with_name("chain.cu").read_text(encoding="utf-8")
    refresh = torch.cuda._compile_kernel(source, "kw_refresh")
    digest = torch.cuda._compile_kernel(source, "kw_digest")
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    return launch, refresh.func, digest.func


class _Launcher:
    """One kernel with its argument cells, which are set before each launch: the driver copies them while it launches.

    Args:
        kernel: its handle.
        cells: one ctypes object per argument.
        stream: address of the stream of the whole block.
    """

    def __init__(self, kernel: Any, cells: tuple[Any, ...], stream: int) -> None:
        self.cells = cells
        self._kernel = kernel
        self._stream = stream
        self._pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self._launch = _kernels()[0]

    def __call__(self, width: int, height: int) -> None:
        status = self._launch(
            self._kernel, width, height, 1, _THREADS, 1, 1, 0, self._stream, self._pointers, None
        )
        if status:
            raise RuntimeError(f"cuLaunchKernel failed with error {status}")


class Table:
    """What may be replaced in one slot: addresses, sizes and strides, as the kernel's struct on the device."""

    def __init__(self, entries: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
        rows = [
            [t.data_ptr(), pool.data_ptr(), t.element_size(), t.numel(), pool.numel(), stride]
            for t, pool, stride in entries
        ]
        self.count = len(rows)
        self.memory = torch.tensor(rows, dtype=torch.int64).to("cuda") if rows else None
        self.address = self.memory.data_ptr() if self.memory is not None else 0
        most = max((-(-t.numel() // stride) for t, _, stride in entries), default=1)
        self.grid = (min(-(-most // _THREADS), 256), max(self.count, 1))


class States:
    """The chain's states of one block, on the device.

    Args:
        calls: how many calls the block has.
        first: its first state.
    """

    def __init__(self, calls: int, first: int) -> None:
        self._words = torch.zeros(calls + 1, dtype=torch.int64, device="cuda")
        self._words[0] = first
        self._base = self._words.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        _, refresh, digest = _kernels()
        self._refresh = _Launcher(refresh, (pointer(), pointer()), stream)
        self._digest = _Launcher(digest, (pointer(), number(), pointer(), pointer(), ctypes.c_int()), stream)

    def refresh(self, table: Table, call: int) -> None:
        """Replaces elements of the next inputs as the state before ``call`` says."""
        if table.count:
            rows, state = self._refresh.cells
            rows.value, state.value = table.address, self._base + 8 * call
            self._refresh(*table.grid)

    def digest(self, tensor: torch.Tensor, span_bytes: int, call: int, *, first: bool) -> None:
        """Adds one output of ``call`` to the state after it."""
        output, length, state, following, is_first = self._digest.cells
        output.value, length.value = tensor.data_ptr(), span_bytes
        state.value, following.value = self._base + 8 * call, self._base + 8 * call + 8
        is_first.value = int(first)
        self._digest(min(max(-(-span_bytes // (16 * _THREADS)), 1), 264), 1)

    def read(self) -> list[int]:
        """The states after each call, as unsigned 64-bit numbers; waits for the device."""
        return [int(word) & _MASK for word in self._words[1:].tolist()]
