# task: bias_gelu
# slip: GELU tanh vs erf
"""The exact GELU where the task has the tanh approximation."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return F.gelu(x + self.bias)
