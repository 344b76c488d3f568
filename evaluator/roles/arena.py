"""Memory that the referee shares with one role: an anonymous file, mapped by both."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from evaluator.roles.frames import TensorMeta

#: The name under which the kernel lists it in a process's mappings.
NAME = "kernelwright-arena"
_ALIGNMENT = 64
#: numpy has no bfloat16 and no float8; their bits are carried as integers of the same width.
_CARRIERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def carrier(dtype: str) -> np.dtype[Any]:
    """The numpy dtype in which tensors of a torch dtype are carried."""
    return np.dtype(_CARRIERS.get(dtype, dtype))


class Arena:
    """A sparse anonymous file of ``size_bytes``; only touched pages take memory."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(mmap.PAGESIZE, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size_bytes)
        # If a role could shrink the file, the next access would crash the other process.
        fcntl.fcntl(
            self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        self.memory = mmap.mmap(self.descriptor, self.size_bytes)
        self._bytes = np.frombuffer(self.memory, dtype=np.uint8)

    def view(self, offset: int, length_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Bytes of the arena as an array that writes through."""
        if offset < 0 or offset + length_bytes > self.size_bytes:
            raise IndexError("outside the arena")
        return self._bytes[offset : offset + length_bytes]

    def tensor(self, offset: int, meta: TensorMeta) -> np.ndarray[Any, Any]:
        """A flat array over the memory span of a tensor, in its carrier dtype."""
        return self.view(offset, meta.span_bytes).view(carrier(meta.dtype))

    def close(self) -> None:
        """Releases the memory, unless a view is still in use."""
        os.close(self.descriptor)
        del self._bytes
        try:
            self.memory.close()
        except BufferError:
            # A caller still holds a view; the mapping is released with it.
            return


class Layouter:
    """Hands out aligned offsets, one after the other."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def take(self, length_bytes: int) -> int:
        """The next offset with room for ``length_bytes``.

        Consecutive tensors start an odd number of cache lines apart, so that they do not alias in the cache.
        """
        offset = self.used_bytes
        self.used_bytes += -(-length_bytes // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        return offset


def sealed_text(text: bytes) -> int:
    """A descriptor of an anonymous, sealed file that contains ``text`` and cannot be changed."""
    descriptor = os.memfd_create("kernelwright-text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(text)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor
