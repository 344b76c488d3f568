"""What every loop over rows shares: building its library, calling it, and memory for large outputs."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections import deque
from collections.abc import Callable

import torch
from torch.utils.cpp_extension import load_inline


def build_kernel(name: str, source: str) -> Callable[[bytes], None]:
    """Compile `source` and return its function `name`, which takes one packed block of arguments.

    One block of bytes in place of ten arguments: ctypes needs 0.4 us for it and 1.9 us for them.
    """
    # Named by its text: programs that share a folder of extensions would overwrite one another's library, which is in use.
    path = load_inline(
        f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:12]}",
        cpp_sources=source,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=[
            "-O3",
            "-march=native",
            "-mprefer-vector-width=512",
            "-fno-math-errno",
            "-ffp-contract=off",
            "-fopenmp",
        ],
        extra_ldflags=["-fopenmp"],
    )
    kernel = getattr(ctypes.CDLL(path), name)
    kernel.argtypes = [ctypes.c_char_p]
    kernel.restype = None
    return kernel  # type: ignore[no-any-return]


# Memory of large outputs. The C library gives blocks of this size back to the system when they are freed, so that each call
# would have every page of its output mapped and zeroed anew: 0.5 us per 4 KiB, as much as the kernel itself takes. (PyTorch
# keeps freed memory on a GPU for the same reason; on a CPU it is usual to preload another malloc.) A storage is used again
# only when nothing refers to it any more, neither a tensor nor a Python object.
POOLED_BYTES = range(128 * 1024, 64 * 1024 * 1024 + 1)
MOST_LOOKS = 32  # at storages that may be in use
POOL_LIMIT_BYTES = 256 * 1024 * 1024
_pool: dict[int, deque[tuple[torch.UntypedStorage, int]]] = {}
_use_count = getattr(torch._C, "_storage_Use_Count", None)


def empty_output(x: torch.Tensor) -> torch.Tensor:
    """A new, uninitialized tensor with the shape and dtype of the contiguous tensor `x`."""
    size_bytes = x.nbytes
    if size_bytes not in POOLED_BYTES or _use_count is None:
        return torch.empty_like(x)
    queue = _pool.get(size_bytes)
    if queue is None:
        queue = _pool.setdefault(size_bytes, deque())
    for _ in range(min(MOST_LOOKS, len(queue))):
        try:
            entry = queue.popleft()  # the oldest; while it is out of the queue no other thread can take it
        except IndexError:
            break
        storage, address = entry
        if _use_count(storage._cdata) != 1 or sys.getrefcount(storage) != 3:
            queue.append(entry)
        elif storage.nbytes() == size_bytes and storage.data_ptr() == address:  # as its last user got it
            queue.append(entry)
            return torch.empty(0, dtype=x.dtype).set_(storage, 0, x.shape, x.stride())
    if sum(size * len(entries) for size, entries in list(_pool.items())) + size_bytes > POOL_LIMIT_BYTES:
        _pool.clear()  # what is still in use is freed by its users
        queue = _pool.setdefault(size_bytes, deque())
    output = torch.empty_like(x)
    queue.append((output.untyped_storage(), output.data_ptr()))
    return output
