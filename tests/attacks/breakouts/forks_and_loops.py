"""A fork bomb whose every process computes."""

# expects: runtime_error|timeout
import os

import torch.nn.functional as F
from torch import nn


def attack():
    while True:
        try:
            os.fork()
        except OSError:
            while True:
                pass


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
