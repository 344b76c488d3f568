# task: layernorm_relu_add
# slip: unbiased variance
"""torch.var divides by n - 1 unless it is told not to."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True)
        y = (x - mean) * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return torch.relu(y) + residual
