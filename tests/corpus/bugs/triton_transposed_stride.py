# task: transposed_row_sum
# slip: stride assumption
"""Uses the row length as the row stride and 1 as the column stride."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + at, mask=at < cols, other=0.0), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
