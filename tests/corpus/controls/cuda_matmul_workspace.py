# task: matmul_bias_relu
# style: preallocated scratch
# only: cuda
"""Keeps one output-sized workspace per shape, and returns a fresh tensor."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)
        self.workspaces = {}

    def forward(self, x):
        key = tuple(x.shape)
        if key not in self.workspaces:
            self.workspaces[key] = torch.empty(x.shape[0], self.linear.out_features, device=x.device)
        product = torch.mm(x, self.linear.weight.t(), out=self.workspaces[key])
        return torch.relu(product + self.linear.bias)
