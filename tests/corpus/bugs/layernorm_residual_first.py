# task: layernorm_relu_add
# slip: order of operations
"""Adds the residual before the ReLU."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        return torch.relu(self.norm(x) + residual)
