# task: row_argmax
# slip: ties
"""The last of equal values."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.shape[-1] - 1 - x.flip(-1).argmax(-1)
