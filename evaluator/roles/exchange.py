"""A role's end of the memory in which the referee reads its outputs on a GPU.

The exchange is one piece of device memory made by the referee. Its lower part is a torch memory pool, so that
outputs of a timed call are in it without a copy. Any other output (a CUDA graph's memory, a view of an input, a
custom allocation) is copied to its upper part, at the cost of the process that returned it.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from evaluator.devices.accelerator import device_memory, torch_gpu
from evaluator.roles.frames import Addresses
from evaluator.roles.protocol import TOO_SMALL

_ALIGNMENT = 512
#: Set in the offset of an output that is in the memory of the inputs.
INPUT_MEMORY = 1 << 62


def span_elements(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


class Exchange:
    """The memory, its pool and the area for copies.

    Args:
        descriptor: from the referee; closed here.
        length_bytes: its size.
        pool_bytes: how much of it, from the start, is the pool's.
        library: path of the compiled `pool.c`; without it every output is copied.
    """

    def __init__(self, descriptor: int, length_bytes: int, pool_bytes: int, library: str | None) -> None:
        torch_gpu.synchronize()
        self._handle = device_memory.adopt(descriptor)
        self._address = device_memory.attach(self._handle, length_bytes)
        os.close(descriptor)
        self._bytes = device_memory.as_bytes(self._address, length_bytes)
        self._length_bytes = length_bytes
        self.pool_mib = pool_bytes >> 20
        self._copies_from = pool_bytes if library else 0
        self._next = self._copies_from
        self._pool: Any = None
        self._overflows: Any = lambda: 0
        if library:
            loaded = ctypes.CDLL(library)
            loaded.kw_pool_init.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
            loaded.kw_pool_init(self._address, pool_bytes)
            loaded.kw_pool_overflows.restype = ctypes.c_long
            self._overflows = loaded.kw_pool_overflows
            # The pool keeps a pointer to the allocator, which must therefore stay alive.
            self._allocator = torch_gpu.memory.CUDAPluggableAllocator(
                library, "kw_pool_alloc", "kw_pool_free"
            )
            self._pool = torch_gpu.MemPool(self._allocator.allocator())

    def leave(self) -> None:
        """Stops allocating in it. What is allocated there stays."""
        self._pool = None
        gc.collect()
        torch_gpu.empty_cache()

    def close(self) -> None:
        """Unmaps the memory. No tensor may be in it any more."""
        self.leave()
        del self._bytes
        device_memory.detach(self._address, self._handle, self._length_bytes)

    @property
    def pool_id(self) -> Any:
        """What ``torch.cuda.graph`` takes as ``pool``; None without one."""
        return None if self._pool is None else self._pool.id

    @property
    def overflowed(self) -> bool:
        """Whether the pool was ever too small, so that outputs may need copies through no fault of the module."""
        return bool(self._overflows())

    def pool(self) -> AbstractContextManager[Any]:
        """While entered, this thread's allocations are in the exchange."""
        return nullcontext() if self._pool is None else torch_gpu.use_mem_pool(self._pool)

    def renew(self) -> None:
        """Starts with an empty pool: one shape's leftovers fit another's outputs badly.

        No CUDA graph that was recorded in it may exist. Tensors in the old pool stay in place.
        """
        if self._pool is not None:
            # Release the old pool first, whose memory the new one needs. Memory freed after an earlier pool was
            # released is still held for that pool.
            self._pool = None
            torch_gpu.empty_cache()
            self._pool = torch_gpu.MemPool(self._allocator.allocator())

    def forget(self) -> None:
        """Discards the copies of earlier outputs."""
        self._next = self._copies_from

    def holds(self, address: int) -> bool:
        """Whether an address is in the exchange."""
        return self._address <= address < self._address + self._length_bytes

    def holds_all(self, addresses: Addresses) -> bool:
        """Whether all of these addresses are in the exchange."""
        return self.holds(int(addresses.min())) and self.holds(int(addresses.max()))

    def offsets(self, addresses: Addresses) -> Addresses:
        """Addresses in the exchange, in bytes from its start."""
        return addresses - np.uint64(self._address)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it is in the exchange, otherwise a copy there with the same strides.

        Raises:
            torch.OutOfMemoryError: the outputs of a block do not fit.
        """
        if self.holds(tensor.data_ptr()) or tensor.numel() == 0:
            return tensor
        elements = span_elements(tensor)
        length_bytes = elements * tensor.element_size()
        if self._next + length_bytes > self._length_bytes:
            raise torch.OutOfMemoryError(f"{TOO_SMALL} for the outputs of one block")
        target = self._bytes[self._next : self._next + length_bytes].view(tensor.dtype)
        self._next += -(-length_bytes // _ALIGNMENT) * _ALIGNMENT
        target.copy_(tensor.as_strided((elements,), (1,)))
        return target.as_strided(tensor.shape, tensor.stride())

    def offset(self, tensor: torch.Tensor) -> int:
        """Where a placed tensor starts, in bytes from the start of the exchange."""
        return tensor.data_ptr() - self._address if tensor.numel() else 0
