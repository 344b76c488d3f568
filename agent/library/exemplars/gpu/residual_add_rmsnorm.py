"""RMSNorm of x + residual, on a GPU: the sum stays in registers, x and residual are read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import LONGEST_ROW, computable, row_tile


@triton.jit
def _residual_add_rmsnorm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    hidden = x + residual
    square = tl.sum(hidden * hidden, axis=1, keep_dims=True) / cols
    y = hidden * (1.0 / tl.sqrt(square + eps)) * weight
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_residual_add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if not shape or shape[-1] != cols or residual.shape != shape or not 0 < cols <= LONGEST_ROW:
        return None
    if not computable(x, residual, weight) or x.numel() == 0:
        return None
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // cols
    tile_rows, tile_cols, warps = row_tile(rows, cols)
    _residual_add_rmsnorm[(triton.cdiv(rows, tile_rows),)](
        x, residual, weight, y, rows, cols, eps, ROWS=tile_rows, COLS=tile_cols, num_warps=warps
    )
    return y
