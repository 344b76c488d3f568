# task: matmul_bias_relu
# slip: order of operations
"""Bias after the activation."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        return torch.relu(x @ self.linear.weight.T) + self.linear.bias
