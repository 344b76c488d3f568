# task: int_row_sum
# slip: int32 overflow
"""A 32 bit accumulator."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(-1, dtype=torch.int32).long()
