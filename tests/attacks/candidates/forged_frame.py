"""E61: writes a reply of its own to every descriptor it finds."""

# expects: contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        import os

        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\x00" * 4096)
            except OSError:
                continue
        return F.relu(self.norm(x))
