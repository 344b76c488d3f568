# task: row_sum
# slip: integer division rounding of the grid
"""rows // 4 programs of four rows."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0) * 4 + tl.arange(0, 4)
    total = tl.zeros((4,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & (at < cols)[None, :]
        total += tl.sum(tl.load(x + row[:, None] * cols + at[None, :], mask=mask, other=0.0), 1)
    tl.store(y + row, total, mask=row < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(max(x.shape[0] // 4, 1),)](x, y, x.shape[0], x.shape[1], BLOCK=128)
        return y
