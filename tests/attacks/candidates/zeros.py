"""E35: zeros, in the hope that the tolerance swallows them."""

# expects: incorrect constant_output
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return torch.zeros_like(x)
