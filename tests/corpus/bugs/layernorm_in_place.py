# task: layernorm_relu_add
# slip: in-place input modification
"""Centers its input in place to save a temporary."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        mean = x.mean(-1, keepdim=True)
        x -= mean
        var = (x * x).mean(-1, keepdim=True)
        y = x * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
