"""Residual, norm, maximum and float8 codes of a row that stays in registers: read once, written once."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated

EPS = 1e-6


@triton.jit
def _e4m3(value):
    """Bits of float8_e4m3fn nearest to values of at most 448 in magnitude, ties to even."""
    bits = value.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    bits = bits & 0x7FFFFFFF
    magnitude = bits.to(tl.float32, bitcast=True)
    # From 2^-6 on: cut the mantissa to three bits and move the exponent's bias from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below, steps are of 2^-9, which is how far apart floats are at 2^14.
    small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    return (sign | tl.where(magnitude < 0.015625, small, normal)).to(tl.uint8)


@triton.jit
def _norm_quantize(
    x_ptr, residual_ptr, weight_ptr, h_ptr, code_ptr, largest_ptr, rows, cols, eps,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * cols + col
    h = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    h += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(h_ptr + place, h.to(h_ptr.dtype.element_ty), mask=inside)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / cols + eps)
    normed = h * scale * weight
    largest = tl.maximum(tl.max(tl.abs(normed), axis=1, keep_dims=True), 1e-12)
    codes = tl.clamp(normed * (448.0 / largest), -448.0, 448.0)
    tl.store(code_ptr + place, _e4m3(codes), mask=inside)
    tl.store(largest_ptr + row, largest, mask=row < rows)


@repeated
def _quantized(x, residual, weight):
    """The sum, its codes and each row's largest value, of contiguous rows."""
    rows, cols = x.shape
    h = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn, device=x.device)
    largest = torch.empty(rows, dtype=torch.float32, device=x.device)
    tile_cols = triton.next_power_of_2(cols)
    tile_rows = min(max(1, 1024 // tile_cols), triton.next_power_of_2(rows))
    warps = min(max(tile_rows * tile_cols // 512, 1), 16)
    tensors = [x, residual, weight, h, codes.view(torch.uint8), largest]
    launch(
        _norm_quantize, (triton.cdiv(rows, tile_rows),), tensors, [rows, cols, EPS],
        ROWS=tile_rows, COLS=tile_cols, num_warps=warps,
    )  # fmt: skip
    return h, codes, largest


class ModelNew(nn.Module):
    def __init__(self, cols: int, dtype: str):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols, dtype=getattr(torch, dtype)))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return _quantized(x.contiguous(), residual.contiguous(), self.weight)
