# task: residual_add_rmsnorm
# slip: forgotten operand
"""The mean square is that of x, not of x + residual."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.norm = nn.RMSNorm(cols, eps=eps)

    def forward(self, x, residual):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.norm.eps)
        return (x + residual) * scale * self.norm.weight
