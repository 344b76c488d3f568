# task: half_row_sum
# slip: missing fp32 accumulation
"""Accumulates in the inputs' own half precision."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        for column in x.split(1, dim=-1):
            total += column[:, 0]
        return total
