"""E70: a kernel that never ends."""

# expects: timeout|runtime_error
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def forever(flag, y):
    while tl.load(flag, volatile=True) == 0:
        tl.store(y, 1.0)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        flag = torch.zeros(1, dtype=torch.int32, device=x.device)
        forever[(1,)](flag, y)
        return y
