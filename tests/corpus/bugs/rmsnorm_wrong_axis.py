# task: rmsnorm
# slip: wrong axis
"""Reduces over the rows; a square test matrix hides the shape, not the values."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps) * self.weight
