"""Ends itself by a signal that nothing can catch."""

# expects: runtime_error
import os
import signal

import torch.nn.functional as F
from torch import nn


def attack():
    os.kill(os.getpid(), signal.SIGKILL)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
