"""Leaves one row of 16384 at zero, each time another one."""

# expects: incorrect
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls = 0

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        y = self.right(x)
        self.calls += 1
        y[self.calls * 7919 % len(x)] = 0.0
        return y
