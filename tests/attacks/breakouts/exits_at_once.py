"""Ends the process with success, past every handler."""

# expects: runtime_error
import os

import torch.nn.functional as F
from torch import nn


def attack():
    os._exit(0)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
