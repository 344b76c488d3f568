"""Sum over the last dimension, on the CPU.

Only reads: 4 bytes per element. Rows are dealt to threads; within a row sixteen lanes and four accumulators hide the
latency of addition, and sums in two levels keep the rounding small.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("row_sum.cpp")

_row_sum = build_kernel("row_sum", CPP_SOURCE)
_row_sum_arguments = struct.Struct("@4q").pack


def library_row_sum(x: torch.Tensor, keepdim: bool) -> torch.Tensor | None:
    """The sums, or None where the kernel does not apply: other dtypes and devices, empty rows, gradients."""
    shape = x.shape
    if not shape or shape[-1] == 0 or not computable(x):
        return None
    return library_row_sum_checked(x.contiguous(), keepdim)


def library_row_sum_checked(x: torch.Tensor, keepdim: bool) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    shape = x.shape
    if not shape[-1] or x.dtype is not torch.float32:
        return None
    cols = shape[-1]
    y = torch.empty((*shape[:-1], 1) if keepdim else shape[:-1])
    _row_sum(_row_sum_arguments(x.data_ptr(), y.data_ptr(), x.numel() // cols, cols))
    return y
