"""relu(LayerNorm(x)) + residual, on a GPU.

One program holds whole rows in registers: x and residual are read once, y is written once, nothing else moves. Mean and
variance are taken in two passes over the registers, in float32 for every dtype; what rounding left in the mean is measured
in the second pass and removed, as in the CPU kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agent.library.exemplars.gpu.runtime import LONGEST_ROW, computable, row_tile


@triton.jit
def _layernorm_relu_add(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    deviation = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / cols, 0.0)
    deviation = tl.where(inside, deviation - tl.sum(deviation, axis=1, keep_dims=True) / cols, 0.0)
    variance = tl.sum(deviation * deviation, axis=1, keep_dims=True) / cols
    normal = deviation * (1.0 / tl.sqrt(variance + eps)) * weight + bias
    y = tl.where(normal < 0.0, 0.0, normal) + residual  # keeps NaN, as torch's relu does
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


def library_layernorm_relu_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor | None:
    """The output, or None where the kernel does not apply: other dtypes and devices, broadcasting, gradients."""
    shape, cols = x.shape, weight.numel()
    if (
        not shape
        or shape[-1] != cols
        or residual.shape != shape
        or bias.numel() != cols
        or not 0 < cols <= LONGEST_ROW
    ):
        return None
    if not computable(x, residual, weight, bias) or x.numel() == 0:
        return None
    x, residual, weight, bias = x.contiguous(), residual.contiguous(), weight.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // cols
    tile_rows, tile_cols, warps = row_tile(rows, cols)
    _layernorm_relu_add[(triton.cdiv(rows, tile_rows),)](
        x, residual, weight, bias, y, rows, cols, eps, ROWS=tile_rows, COLS=tile_cols, num_warps=warps
    )
    return y
