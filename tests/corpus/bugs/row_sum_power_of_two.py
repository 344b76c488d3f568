# task: row_sum
# slip: power-of-two assumption
"""A tree that halves the row until one is left, which drops the odd one out at every level."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            x = x[:, :half] + x[:, half : 2 * half]
        return x[:, 0].clone()
