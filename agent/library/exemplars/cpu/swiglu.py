"""silu(gate) * up, on the CPU.

Elementwise: 12 bytes move per element and one exponential is computed, sixteen at a time by a short polynomial, which
is cheaper than the memory traffic. An output too large for the last-level cache is streamed past it.
"""

from __future__ import annotations

import struct

import torch

from agent.library.exemplars.cpu.runtime import build_kernel, computable, empty_output
from agent.library.exemplars.cpu.source import cpp_source

CPP_SOURCE = cpp_source("swiglu.cpp")

_swiglu = build_kernel("swiglu", CPP_SOURCE)
_swiglu_arguments = struct.Struct("@4q").pack


def library_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    if gate.shape != up.shape or not computable(gate, up):
        return None
    return library_swiglu_checked(gate.contiguous(), up.contiguous())


def library_swiglu_checked(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
    """The same for contiguous inputs on the CPU, where nothing needs a gradient. Parameters may have been changed."""
    if up.shape != gate.shape or gate.dtype is not torch.float32 or up.dtype is not torch.float32:
        return None
    y = empty_output(gate)
    _swiglu(_swiglu_arguments(gate.data_ptr(), up.data_ptr(), y.data_ptr(), gate.numel()))
    return y
