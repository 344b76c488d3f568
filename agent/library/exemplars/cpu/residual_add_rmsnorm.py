"""RMSNorm of x + residual, on the CPU.

Bound by memory: 12 bytes move per element. The sum of x and residual is never stored: it is added once for the mean and
once for the output, both times from the L1 cache, which holds a block of rows of both.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("residual_add_rmsnorm.cpp")

_residual_add_rmsnorm = build_kernel("residual_add_rmsnorm", CPP_SOURCE)
_residual_add_rmsnorm_arguments = struct.Struct("@6qf").pack


def library_residual_add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if not shape or shape[-1] != cols or residual.shape != shape or cols == 0:
        return None
    if not computable(x, residual, weight):
        return None
    return library_residual_add_rmsnorm_checked(
        x.contiguous(), residual.contiguous(), weight.contiguous(), eps
    )


def library_residual_add_rmsnorm_checked(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    cols = weight.numel()
    if (
        residual.shape != x.shape
        or not cols
        or x.size(-1) != cols
        or x.dtype is not torch.float32
        or residual.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or not (weight.is_cpu and weight.is_contiguous())
    ):
        return None
    y = empty_output(x)
    _residual_add_rmsnorm(
        _residual_add_rmsnorm_arguments(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // cols, cols, eps
        )
    )
    return y
