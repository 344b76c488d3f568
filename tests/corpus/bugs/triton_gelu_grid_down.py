# task: bias_gelu
# slip: last block skipped
"""numel // BLOCK programs."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, bias, y, count, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.load(bias + at % cols, mask=at < count)
    inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
    tl.store(y + at, value * tl.sigmoid(2.0 * inner), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        grid = (max(x.numel() // 1024, 1),)
        kernel[grid](x, self.bias, y, x.numel(), x.shape[1], BLOCK=1024)
        return y
