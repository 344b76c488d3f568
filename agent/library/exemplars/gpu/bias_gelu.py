"""GELU of x + bias in the approximation with tanh, on a GPU.

(1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)): one exponential takes the place of a tanh, and the left tail keeps its digits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import computable


@triton.jit
def _bias_gelu(x_ptr, bias_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    v = x + tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    y = v / (1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))  # 2 * sqrt(2 / pi)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, bias.numel()
    if not shape or shape[-1] != cols or not computable(x, bias) or x.numel() == 0:
        return None
    x, bias = x.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // cols
    tile_cols = min(triton.next_power_of_2(cols), 1024)
    tile_rows = 1024 // tile_cols
    grid = (triton.cdiv(rows, tile_rows), triton.cdiv(cols, tile_cols))
    _bias_gelu[grid](x, bias, y, rows, cols, ROWS=tile_rows, COLS=tile_cols, num_warps=4)
    return y
