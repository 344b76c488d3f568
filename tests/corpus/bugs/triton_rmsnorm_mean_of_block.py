# task: rmsnorm
# slip: mean over the wrong count
"""Divides by the block's size instead of the row's."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, weight, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < cols
    value = tl.load(x + row * cols + at, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / BLOCK + eps)
    tl.store(y + row * cols + at, value * scale * tl.load(weight + at, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], self.eps, BLOCK=block)
        return y
