# task: column_sum
# slip: race on accumulation
# only: cuda
"""Load, add, store by every row's program at the same place. The interpreter runs programs one after the other, so only a GPU shows it."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < cols)
        tl.store(y + at, tl.load(y + at, mask=at < cols) + value, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros(x.shape[1], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=256)
        return y
