"""Asks for 200 GB and touches them."""

# expects: out_of_memory
import torch

import torch.nn.functional as F
from torch import nn


def attack():
    torch.ones(200 << 30, dtype=torch.uint8)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
