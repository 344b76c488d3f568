# task: matmul_bias_relu
# slip: transposed weights that only work when square
"""Reads the weight in the other order; a reshape makes the sizes fit."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        weight = self.linear.weight.reshape(x.shape[-1], -1)
        return torch.relu(x @ weight + self.linear.bias)
