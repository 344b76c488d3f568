"""Host memory that a GPU reads and writes, and queued work that waits for a word there or writes one.

Source: CUDA driver API, "Stream Memory Operations".
"""

from __future__ import annotations

import ctypes

from evaluator.devices.cuda.driver import call

_PORTABLE_AND_MAPPED = 3
_EQUAL = 1


def register(host: int, length_bytes: int) -> int:
    """Gives the GPU access to host memory and returns its address there.

    Raises:
        RuntimeError: the driver does not allow it.
    """
    address = ctypes.c_uint64()
    call(
        "cuMemHostRegister_v2",
        ctypes.c_void_p(host),
        ctypes.c_size_t(length_bytes),
        ctypes.c_uint(_PORTABLE_AND_MAPPED),
    )
    call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), ctypes.c_void_p(host), ctypes.c_uint(0))
    return address.value


def unregister(host: int) -> None:
    """Undoes :func:`register`."""
    call("cuMemHostUnregister", ctypes.c_void_p(host))


def wait_word(address: int, word: int, stream: int) -> None:
    """Queues a wait until the 32-bit word at a registered address has this value."""
    _queue("cuStreamWaitValue32_v2", address, word, _EQUAL, stream)


def write_word(address: int, word: int, stream: int) -> None:
    """Queues the writing of a 32-bit word to a registered address, after everything before it."""
    _queue("cuStreamWriteValue32_v2", address, word, 0, stream)


def copy_to_host(host: int, address: int, length_bytes: int, stream: int) -> None:
    """Queues a copy from the device to host memory."""
    call(
        "cuMemcpyDtoHAsync_v2",
        ctypes.c_void_p(host),
        ctypes.c_uint64(address),
        ctypes.c_size_t(length_bytes),
        ctypes.c_void_p(stream),
    )


def _queue(name: str, address: int, word: int, flags: int, stream: int) -> None:
    call(
        name,
        ctypes.c_void_p(stream),
        ctypes.c_uint64(address),
        ctypes.c_uint32(word),
        ctypes.c_uint(flags),
    )
