# task: row_extremes
# slip: aliasing of scratch
"""Both reductions use one buffer."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        scratch = torch.empty(x.shape[0], device=x.device)
        low = torch.amin(x, dim=-1, out=scratch)
        high = torch.amax(x, dim=-1, out=scratch)
        return low, high
