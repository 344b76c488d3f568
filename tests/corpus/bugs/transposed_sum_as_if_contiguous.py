# task: transposed_row_sum
# slip: stride assumption
"""Walks the memory as if rows were contiguous."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        return x.as_strided((rows, cols), (cols, 1)).sum(-1)
