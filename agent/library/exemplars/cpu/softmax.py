"""Softmax over the last dimension, on the CPU.

One exponential an element, computed sixteen at a time by a short polynomial; it is kept in the output row, which is still
in the L1 cache when the sum is known and it is divided. Memory is read once and written once.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("softmax.cpp")

_softmax = build_kernel("softmax", CPP_SOURCE)
_softmax_arguments = struct.Struct("@4q").pack


def library_softmax(x: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape = x.shape
    if not shape or shape[-1] == 0 or not computable(x):
        return None
    return library_softmax_checked(x.contiguous())


def library_softmax_checked(x: torch.Tensor) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    shape = x.shape
    if not shape[-1] or x.dtype is not torch.float32:
        return None
    y = empty_output(x)
    cols = shape[-1]
    _softmax(_softmax_arguments(x.data_ptr(), y.data_ptr(), x.numel() // cols, cols))
    return y
