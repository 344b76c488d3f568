# task: layernorm_relu_add
# slip: wrong epsilon placement
"""Epsilon added to the standard deviation instead of the variance."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        mean = x.mean(-1, keepdim=True)
        deviation = x.var(-1, keepdim=True, unbiased=False).sqrt() + self.norm.eps
        y = (x - mean) / deviation * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
