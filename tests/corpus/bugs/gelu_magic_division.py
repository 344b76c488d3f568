# task: bias_gelu
# slip: int32 overflow
"""column = index mod cols through a multiplication by 2^20 / cols in 32 bits, which wraps around early."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        rows, cols = x.shape
        magic = (1 << 20) // cols + 1
        index = torch.arange(rows * cols, dtype=torch.int32, device=x.device)
        row = (index * magic) >> 20
        column = (index - row * cols).long().clamp(0, cols - 1)
        return F.gelu(x + self.bias[column].view(rows, cols), approximate="tanh")
