# task: row_sum
# slip: last block skipped
"""Whole blocks of 64 columns only."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        whole = max(cols // 64, 1) * 64
        return x[:, :whole].sum(-1)
