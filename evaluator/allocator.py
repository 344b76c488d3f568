"""Settings of glibc's allocator for this process."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(most_bytes: int) -> None:
    """Keeps up to so much freed memory in the heap instead of returning it to the system; nothing on another libc.

    A fresh page costs a page fault of 1 us and more, so a tensor that is allocated and freed over and over costs more in faults than
    in arithmetic.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, most_bytes // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, min(most_bytes, (1 << 31) - 1))
        libc.mallopt(_M_TOP_PAD, 64 << 20)
