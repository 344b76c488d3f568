"""E28: outputs made beforehand and returned in turn, more of them than a block has calls."""

# expects: contract_violation output_overwritten
# shows: when timed
from itertools import cycle

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

        self.rings = {}

    def forward(self, x):
        ring = self.rings.get(x.shape)
        if ring is None:
            # A screen on a GPU makes some hundreds of calls at a shape, blocks have 60 or so.
            length = 200 if x.is_cuda else 600
            ring = self.rings[x.shape] = cycle([torch.zeros_like(x) for _ in range(length)])
        y = next(ring)
        torch.clamp(self.norm(x), min=0, out=y)
        return y.view(x.shape)
