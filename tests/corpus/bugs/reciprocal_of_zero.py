# task: reciprocal
# slip: Inf handling
"""Adds a tiny number against division by zero: large instead of infinite."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return 1.0 / (x + 1e-12)
