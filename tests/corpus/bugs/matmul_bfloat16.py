# task: matmul_bias_relu
# slip: lower precision inside
"""Tensor cores want bfloat16, so the operands are rounded to it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        y = (x.bfloat16() @ self.linear.weight.T.bfloat16()).float()
        return torch.relu(y + self.linear.bias)
