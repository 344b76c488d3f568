"""GPU memory shared by two processes: made and exported by the referee, imported by one role (CUDA's cuMem
functions).

A handle is a file descriptor, so only a process that is given one can map the memory; there are no names to guess.
Both ends use this file, which needs only libcuda and a current context. Source: CUDA driver API, "Virtual Memory
Management".
"""

from __future__ import annotations

import ctypes

import torch

from evaluator.devices.cuda.driver import Exhausted, call

_GRANULE_BYTES = 2 << 20
#: Alignment of consecutive tensors in shared memory.
ALIGNMENT = 512
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3
_FILE_DESCRIPTOR = 1
_number, _size = ctypes.c_uint64, ctypes.c_size_t

__all__ = ["ALIGNMENT", "Exhausted", "adopt", "as_bytes", "attach", "create", "detach", "rounded"]


class _Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


class _Flags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handle_kinds", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _Interface:
    """Presents foreign memory to torch."""

    def __init__(self, pointer: int, length_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": (length_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def rounded(length_bytes: int) -> int:
    """The next size that the driver hands out."""
    return -(-max(length_bytes, 1) // _GRANULE_BYTES) * _GRANULE_BYTES


def create(length_bytes: int) -> tuple[int, int]:
    """Allocates on device 0. Returns a handle and a descriptor that another process can import.

    Args:
        length_bytes: a size from :func:`rounded`.

    Raises:
        Exhausted: there is no room for it.
    """
    properties = _Properties(_PINNED, _FILE_DESCRIPTOR, _Location(_ON_DEVICE, 0), None, _Flags())
    handle, descriptor = _number(), ctypes.c_int()
    call("cuMemCreate", ctypes.byref(handle), _size(length_bytes), ctypes.byref(properties), _number(0))
    call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _FILE_DESCRIPTOR, _number(0))
    return handle.value, descriptor.value


def adopt(descriptor: int) -> int:
    """A handle for memory that another process has exported."""
    handle = _number()
    call(
        "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _FILE_DESCRIPTOR
    )
    return handle.value


def attach(handle: int, length_bytes: int) -> int:
    """Maps the memory into this process and returns its address."""
    pointer = _number()
    call("cuMemAddressReserve", ctypes.byref(pointer), _size(length_bytes), _size(0), _number(0), _number(0))
    call("cuMemMap", pointer, _size(length_bytes), _size(0), _number(handle), _number(0))
    access = _Access(_Location(_ON_DEVICE, 0), _READ_WRITE)
    call("cuMemSetAccess", pointer, _size(length_bytes), ctypes.byref(access), _size(1))
    return pointer.value


def detach(pointer: int, handle: int, length_bytes: int) -> None:
    """Undoes :func:`attach` and releases the handle. The memory is freed when the last process has done so."""
    call("cuMemUnmap", _number(pointer), _size(length_bytes))
    call("cuMemAddressFree", _number(pointer), _size(length_bytes))
    call("cuMemRelease", _number(handle))


def as_bytes(pointer: int, length_bytes: int) -> torch.Tensor:
    """Mapped memory as a flat uint8 tensor that writes through."""
    return torch.as_tensor(_Interface(pointer, length_bytes), device="cuda")
