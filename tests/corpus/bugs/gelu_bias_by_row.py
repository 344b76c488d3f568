# task: bias_gelu
# slip: wrong broadcasting of bias
"""Indexes the bias by the row, modulo its length."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        rows, cols = x.shape
        bias = self.bias[torch.arange(rows, device=x.device) % cols]
        return F.gelu(x + bias[:, None], approximate="tanh")
