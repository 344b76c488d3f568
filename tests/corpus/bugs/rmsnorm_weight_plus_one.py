# task: rmsnorm
# slip: wrong variant of the formula
"""Some models store weight - 1; this one adds the one where it does not belong."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)
