"""Softmax over the last dimension, on a GPU: one program holds whole rows in registers, so that x is read once and one
exponential is computed per element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import LONGEST_ROW, computable, row_tile


@triton.jit
def _softmax(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    x = tl.load(x_ptr + place, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = power / tl.sum(power, axis=1, keep_dims=True)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_softmax(x: torch.Tensor) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, very long rows, gradients."""
    shape = x.shape
    if not shape or not 0 < shape[-1] <= LONGEST_ROW or not computable(x) or x.numel() == 0:
        return None
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = shape[-1]
    rows = x.numel() // cols
    tile_rows, tile_cols, warps = row_tile(rows, cols)
    _softmax[(triton.cdiv(rows, tile_rows),)](
        x, y, rows, cols, ROWS=tile_rows, COLS=tile_cols, num_warps=warps
    )
    return y
