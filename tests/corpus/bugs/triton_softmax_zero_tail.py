# task: softmax
# slip: reduction over padded lanes
"""The tail is filled with zeros instead of minus infinity and counts in the sum."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * cols + at, value / tl.sum(value, 0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
