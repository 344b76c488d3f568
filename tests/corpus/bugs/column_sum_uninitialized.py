# task: column_sum
# slip: uninitialised accumulator
"""Adds up chunks of rows in memory that nobody cleared."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1], device=x.device)
        for part in x.split(64):
            y += part.sum(0)
        return y
