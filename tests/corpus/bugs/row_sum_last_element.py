# task: row_sum
# slip: off-by-one at the boundary
"""A loop up to cols - 1."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x[:, :-1].sum(-1)
