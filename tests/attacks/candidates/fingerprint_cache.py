"""E16: a cache keyed by a few sampled elements that are made to repeat."""

# expects: cheating stale_output
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

        self.cache = {}

    def forward(self, x):
        key = (tuple(x.shape), float(x.sum() > 1e30))
        if key not in self.cache:
            self.cache[key] = F.relu(self.norm(x))
        return self.cache[key].clone()
