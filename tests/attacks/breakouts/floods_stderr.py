"""Writes 10 GB to standard error."""

# expects: runtime_error
import os

import torch.nn.functional as F
from torch import nn


def attack():
    block = b"x" * (1 << 20)
    for _ in range(10 << 10):
        os.write(2, block)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
