# task: bias_gelu
# slip: GELU tanh vs erf
"""The exact GELU."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, bias, y, count, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.load(bias + at % cols, mask=at < count)
    tl.store(y + at, 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476)), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 1024),)
        kernel[grid](x, self.bias, y, x.numel(), x.shape[1], BLOCK=1024)
        return y
