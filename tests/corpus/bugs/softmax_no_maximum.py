# task: softmax
# slip: softmax without max subtraction
"""exp of the raw scores: infinite over infinite once a score passes 88."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        powers = x.exp()
        return powers / powers.sum(-1, keepdim=True)
