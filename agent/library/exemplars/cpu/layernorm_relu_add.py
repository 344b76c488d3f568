"""relu(LayerNorm(x)) + residual, on the CPU.

The operation is bound by memory: 12 bytes move per element and a handful of operations are done with them. A block of
rows fits the L1 cache, so that memory is read once and the two later passes find the rows there; an output too large for
the last-level cache is streamed past it. Inputs of a few thousand elements are bound by the cost of the call itself,
which is why the Python side below is terse and why they stay on one thread.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("layernorm_relu_add.cpp")

_layernorm_relu_add = build_kernel("layernorm_relu_add", CPP_SOURCE)
_layernorm_relu_add_arguments = struct.Struct("@7qf").pack


def library_layernorm_relu_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if not shape or shape[-1] != cols or residual.shape != shape or bias.numel() != cols or cols == 0:
        return None
    if not computable(x, residual, weight, bias):
        return None
    return library_layernorm_relu_add_checked(
        x.contiguous(), residual.contiguous(), weight.contiguous(), bias.contiguous(), eps
    )


def library_layernorm_relu_add_checked(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
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
        or bias.dtype is not torch.float32
        or bias.numel() != cols
        or not (weight.is_cpu and weight.is_contiguous())
        or not (bias.is_cpu and bias.is_contiguous())
    ):
        return None
    y = empty_output(x)
    _layernorm_relu_add(
        _layernorm_relu_add_arguments(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            y.data_ptr(),
            x.numel() // cols,
            cols,
            eps,
        )
    )
    return y
