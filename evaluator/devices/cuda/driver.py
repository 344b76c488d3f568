"""Calls of CUDA's driver, which needs only libcuda and a current context."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_OUT_OF_MEMORY = 2


class Exhausted(RuntimeError):
    """The device has no such piece of memory left."""


@cache
def library() -> Any:
    """libcuda."""
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """Calls one function.

    Raises:
        Exhausted: the device is out of memory.
        RuntimeError: the function failed otherwise.
    """
    status = getattr(library(), name)(*arguments)
    if status == _OUT_OF_MEMORY:
        raise Exhausted(f"{name}: out of device memory")
    if status:
        raise RuntimeError(f"{name} failed with CUDA error {status}")
