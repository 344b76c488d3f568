# task: column_sum
# slip: uninitialised accumulator
"""Atomic additions onto memory that nobody cleared."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.atomic_add(y + at, tl.load(x + row * cols + at, mask=at < cols), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=256)
        return y
