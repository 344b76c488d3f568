"""E27: changes its input."""

# expects: contract_violation input_mutated
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = F.relu(self.norm(x))
        x.zero_()
        return y
