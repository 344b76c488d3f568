"""RMSNorm with a scale, on the CPU.

Bound by memory: 8 bytes move per element. A block of rows fits the L1 cache, so that memory is read once and the second
pass finds the rows there; an output too large for the last-level cache is streamed past it.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("rmsnorm.cpp")

_rmsnorm = build_kernel("rmsnorm", CPP_SOURCE)
_rmsnorm_arguments = struct.Struct("@5qf").pack


def library_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if not shape or shape[-1] != cols or cols == 0 or not computable(x, weight):
        return None
    return library_rmsnorm_checked(x.contiguous(), weight.contiguous(), eps)


def library_rmsnorm_checked(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    cols = weight.numel()
    if (
        not cols
        or x.size(-1) != cols
        or x.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or not (weight.is_cpu and weight.is_contiguous())
    ):
        return None
    y = empty_output(x)
    _rmsnorm(_rmsnorm_arguments(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // cols, cols, eps))
    return y
