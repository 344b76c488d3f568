"""E70: writes where nothing is mapped, which spoils the process's CUDA context."""

# expects: runtime_error
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def wild(y):
    tl.store(y + (1 << 40), 1.0)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        wild[(1,)](y)
        return y
