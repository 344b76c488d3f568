# task: half_matmul
# slip: missing fp32 accumulation
"""Rank-one updates are added up in half precision."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        for left, right in zip(a.split(1, 1), b.split(1, 0)):
            total += left @ right
        return total
