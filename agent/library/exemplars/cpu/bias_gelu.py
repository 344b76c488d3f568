"""GELU of x + bias in the approximation with tanh, on the CPU.

8 bytes move per element. (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)): one exponential by a short polynomial takes the place
of a tanh, and the left tail keeps its digits.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("bias_gelu.cpp")

_bias_gelu = build_kernel("bias_gelu", CPP_SOURCE)
_bias_gelu_arguments = struct.Struct("@5q").pack


def library_bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, bias.numel()
    if not shape or shape[-1] != cols or cols == 0 or not computable(x, bias):
        return None
    return library_bias_gelu_checked(x.contiguous(), bias.contiguous())


def library_bias_gelu_checked(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    cols = bias.numel()
    if (
        not cols
        or x.size(-1) != cols
        or x.dtype is not torch.float32
        or bias.dtype is not torch.float32
        or not (bias.is_cpu and bias.is_contiguous())
    ):
        return None
    y = empty_output(x)
    _bias_gelu(_bias_gelu_arguments(x.data_ptr(), bias.data_ptr(), y.data_ptr(), x.numel() // cols, cols))
    return y
