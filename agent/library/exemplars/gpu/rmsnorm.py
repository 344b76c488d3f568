"""RMSNorm with a scale, on a GPU: one program holds whole rows in registers, so that x is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import LONGEST_ROW, computable, row_tile


@triton.jit
def _rmsnorm(x_ptr, weight_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    square = tl.sum(x * x, axis=1, keep_dims=True) / cols
    y = x * (1.0 / tl.sqrt(square + eps)) * weight
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if (
        not shape
        or shape[-1] != cols
        or not 0 < cols <= LONGEST_ROW
        or not computable(x, weight)
        or x.numel() == 0
    ):
        return None
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // cols
    tile_rows, tile_cols, warps = row_tile(rows, cols)
    _rmsnorm[(triton.cdiv(rows, tile_rows),)](
        x, weight, y, rows, cols, eps, ROWS=tile_rows, COLS=tile_cols, num_warps=warps
    )
    return y
