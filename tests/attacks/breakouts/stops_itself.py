"""Stops itself, so that it never answers and never ends."""

# expects: timeout
import os
import signal

import torch.nn.functional as F
from torch import nn


def attack():
    os.kill(os.getpid(), signal.SIGSTOP)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
