"""E28: one persistent buffer for all results."""

# expects: contract_violation output_overwritten
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

        self.buffer = {}

    def forward(self, x):
        y = self.buffer.setdefault(tuple(x.shape), torch.empty_like(x))
        return y.copy_(F.relu(self.norm(x)))
