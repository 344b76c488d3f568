"""silu(gate) * up, on a GPU: elementwise, both inputs read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import computable


@triton.jit
def _swiglu(gate_ptr, up_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    if gate.shape != up.shape or not computable(gate, up) or gate.numel() == 0:
        return None
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    elements = gate.numel()
    _swiglu[(triton.cdiv(elements, 1024),)](gate, up, y, elements, BLOCK=1024, num_warps=4)
    return y
