# task: row_extremes
# slip: order of outputs
"""Largest first."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.amax(-1), x.amin(-1)
