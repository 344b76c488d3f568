# task: reciprocal
# slip: Inf handling
"""A Newton step after an estimate turns infinity into NaN."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        estimate = 1.0 / x
        return estimate * (2.0 - x * estimate)
