# task: layernorm_relu_add
# slip: reduction over padded lanes
"""Pads rows to a multiple of 32 and counts (0 - mean)^2 of the padding into the variance."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        cols = x.shape[-1]
        padded = F.pad(x, (0, -cols % 32))
        mean = padded.sum(-1, keepdim=True) / cols
        var = ((padded - mean) ** 2).sum(-1, keepdim=True) / cols
        y = (x - mean) * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
