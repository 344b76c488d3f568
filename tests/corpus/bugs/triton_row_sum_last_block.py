# task: row_sum
# slip: last block skipped
"""cols // BLOCK steps."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(cols // BLOCK):
        total += tl.load(x + row * cols + step * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=128)
        return y
