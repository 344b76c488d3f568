# task: negative_row_max
# slip: wrong identity for max
"""The accumulator of the maximum starts at zero."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.cat([x, torch.zeros(x.shape[0], 1, device=x.device)], 1).amax(-1)
