"""Variance as E[x^2] - E[x]^2: right on friendly inputs, garbage under a large mean."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        y = (x - mean) * torch.rsqrt(variance.clamp_min(0) + self.norm.eps)
        return F.relu(y * self.norm.weight + self.norm.bias)
