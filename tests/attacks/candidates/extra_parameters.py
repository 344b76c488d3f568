"""A state_dict that the reference's does not fit."""

# expects: contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

        self.extra = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return F.relu(self.norm(x)) * self.extra
