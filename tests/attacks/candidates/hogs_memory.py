"""Holds and fills as much memory as it can get away with, so that the rival has to do with the rest."""

# expects: accepted
# gains: nothing
import torch
import torch.nn.functional as F
from torch import nn


HELD = []


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        if not HELD:
            HELD.append(torch.full((1 << 28,), 1.0))

    def forward(self, x):
        return F.relu(self.norm(x))
