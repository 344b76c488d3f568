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
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernel, refresh.func, digest.func


def _launch(kernel: Any, grid: tuple[int, int], arguments: Any) -> None:
    launch = _kernels()[0]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = launch(kernel, grid[0], grid[1], 1, _THREADS, 1, 1, 0, stream, arguments, None)
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

    def refresh(self, table: Table, call: int) -> None:
        """Replaces elements of the next inputs as the state before ``call`` says."""
        if not table.count:
            return
        assert table.memory is not None
        values = (ctypes.c_void_p(table.memory.data_ptr()), ctypes.c_void_p(self._base + 8 * call))
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        _launch(_kernels()[1], table.grid, pointers)

    def digest(self, tensor: torch.Tensor, span_bytes: int, call: int, *, first: bool) -> None:
        """Adds one output of ``call`` to the state after it."""
        values = (
            ctypes.c_void_p(tensor.data_ptr()),
            ctypes.c_uint64(span_bytes),
            ctypes.c_void_p(self._base + 8 * call),
            ctypes.c_void_p(self._base + 8 * call + 8),
            ctypes.c_int(int(first)),
        )
        pointers = (ctypes.c_void_p * 5)(*(ctypes.addressof(value) for value in values))
        blocks = min(max(-(-span_bytes // (16 * _THREADS)), 1), 264)
        _launch(_kernels()[2], (blocks, 1), pointers)

    def read(self) -> list[int]:
        """The states after each call, as unsigned 64-bit numbers; waits for the device."""
        return [int(word) & _MASK for word in self._words[1:].tolist()]
