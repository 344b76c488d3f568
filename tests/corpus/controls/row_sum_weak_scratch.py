# task: row_sum
# style: scratch in a pool
"""Keeps temporaries of each shape in a pool; what it returns never comes from there."""

import torch
from torch import nn


POOL = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = (tuple(x.shape), x.device)
        if key not in POOL:
            POOL[key] = torch.empty_like(x)
        squeezed = torch.mul(x, 1.0, out=POOL[key])
        return squeezed.sum(-1)
