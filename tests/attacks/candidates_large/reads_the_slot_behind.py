"""Looks for a content in the memory behind its input, where the next slot would be."""

# expects: incorrect|runtime_error|cheating
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        there = x.untyped_storage().nbytes() // 4 - x.storage_offset() - x.numel()
        if there >= x.numel():
            x = x.as_strided(x.shape, x.stride(), x.storage_offset() + x.numel())
        else:
            x = x.as_strided(x.shape, x.stride(), 0)[torch.arange(len(x), device=x.device) - 1]
        return self.right(x)
