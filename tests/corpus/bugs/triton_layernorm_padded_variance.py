# task: layernorm_relu_add
# slip: reduction over padded lanes
"""Masked lanes are zero, but minus the mean they are not."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, residual, weight, bias, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < cols
    value = tl.load(x + row * cols + at, mask=mask, other=0.0)
    mean = tl.sum(value, 0) / cols
    centered = value - mean
    var = tl.sum(centered * centered, 0) / cols
    scaled = centered * tl.rsqrt(var + eps) * tl.load(weight + at, mask=mask) + tl.load(bias + at, mask=mask)
    out = tl.maximum(scaled, 0.0) + tl.load(residual + row * cols + at, mask=mask)
    tl.store(y + row * cols + at, out, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        y = torch.empty_like(x)
        rows, cols = x.shape
        block = triton.next_power_of_2(cols)
        kernel[(rows,)](x, residual, self.norm.weight, self.norm.bias, y, cols, self.norm.eps, BLOCK=block)
        return y
