"""E22, E34: returns uninitialized memory, in the hope that the right answer was just freed there."""

# expects: incorrect
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return torch.empty_like(x)
