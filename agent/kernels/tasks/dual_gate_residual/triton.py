"""Both gates and the residual in one pass; a program keeps to a row, so that no index is found by division."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _gate(
    packed_ptr, residual_ptr, y_ptr, rows, units, UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    cols = units * UNIT  # so the compiler knows how wide loads may be
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    part = packed_ptr + row * 3 * cols + col
    a = tl.load(part, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(part + cols, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(part + 2 * cols, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * cols + col, mask=inside, other=0.0).to(tl.float32)
    y = residual + a * tl.sigmoid(a) * b * tl.sigmoid(c)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def forward(self, packed: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        packed, residual = packed.contiguous(), residual.contiguous()
        rows, cols = residual.shape
        y = torch.empty_like(residual)
        tile_cols = min(triton.next_power_of_2(cols), 1024)
        tile_rows = min(1024 // tile_cols, triton.next_power_of_2(rows))
        grid = (triton.cdiv(rows, tile_rows), triton.cdiv(cols, tile_cols))
        unit = next(unit for unit in (8, 4, 2, 1) if cols % unit == 0)
        _gate[grid](
            packed, residual, y, rows, cols // unit, UNIT=unit, ROWS=tile_rows, COLS=tile_cols, num_warps=4
        )
        return y
