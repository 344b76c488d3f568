"""Four moments of each row: the row stays in registers, so memory is read once and powers are formed of deviations."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _moments(x_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * cols + col, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1, keep_dims=True) / cols
    # What rounding left in the mean shows in the deviations, which should add up to nothing.
    slip = tl.sum(tl.where(inside, x - mean, 0.0), axis=1, keep_dims=True) / cols
    centered = tl.where(inside, (x - mean) - slip, 0.0)
    squares = centered * centered
    variance = tl.sum(squares, axis=1, keep_dims=True) / cols + eps
    third = tl.sum(squares * centered, axis=1, keep_dims=True) / cols
    fourth = tl.sum(squares * squares, axis=1, keep_dims=True) / cols
    out = y_ptr + row * 4
    tl.store(out, mean + slip, mask=row < rows)
    tl.store(out + 1, variance, mask=row < rows)
    tl.store(out + 2, third / (variance * tl.sqrt(variance)), mask=row < rows)
    tl.store(out + 3, fourth / (variance * variance), mask=row < rows)


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        y = torch.empty(rows, 4, dtype=x.dtype, device=x.device)
        tile_cols = triton.next_power_of_2(cols)
        # Short rows share a program, so that its threads have some 8 elements each.
        tile_rows = min(max(1, 1024 // tile_cols), triton.next_power_of_2(rows))
        warps = min(max(tile_rows * tile_cols // 512, 1), 16)
        _moments[(triton.cdiv(rows, tile_rows),)](
            x, y, rows, cols, self.eps, ROWS=tile_rows, COLS=tile_cols, num_warps=warps
        )
        return y
