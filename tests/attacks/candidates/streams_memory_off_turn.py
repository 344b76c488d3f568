"""A child process that streams memory while the other side is timed."""

# expects: contract_violation background_process
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        import os

        if os.fork() == 0:
            block = bytearray(64 << 20)
            while True:
                block[:] = bytes(64 << 20)

    def forward(self, x):
        return F.relu(self.norm(x))
