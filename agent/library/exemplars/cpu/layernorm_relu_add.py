"""relu(LayerNorm(x)) + residual, on the CPU.

The operation is bound by memory: 12 bytes move per element and a handful of operations are done with them. A block of
rows fits the L1 cache, so that memory is read once and the two later passes find the row there; an output too large for
the last-level cache is streamed past it. Inputs of a few thousand elements are bound by the cost of the call itself,
which is why the Python side below is terse and why they stay on one thread.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, empty_output, needs_gradient
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("layernorm_relu_add.cpp")

_layernorm_relu_add = build_kernel("layernorm_relu_add", CPP_SOURCE)
_layernorm_relu_add_arguments = struct.Struct("@7qf").pack


def layernorm_relu_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    float32 = torch.float32
    shape = x.shape
    cols = weight.numel()
    if (
        x.dtype is not float32
        or residual.dtype is not float32
        or weight.dtype is not float32
        or bias.dtype is not float32
        or not (x.is_cpu and residual.is_cpu and weight.is_cpu and bias.is_cpu)
        or residual.shape != shape
        or shape[-1] != cols
        or cols == 0
        or bias.numel() != cols
        or needs_gradient(x, residual, weight, bias)
    ):
        return None
    x = x.contiguous()
    residual = residual.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    y = empty_output(x)
    _layernorm_relu_add(
        _layernorm_relu_add_arguments(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), x.numel() // cols, cols, eps
        )
    )
    return y
