"""Writes files until there is no room for more."""

# expects: runtime_error
import os

import torch.nn.functional as F
from torch import nn


def attack():
    folder = os.environ["TMPDIR"]
    block = bytes(64 << 20)
    for number in range(1 << 16):
        with open(os.path.join(folder, f"filling-{number}"), "wb", buffering=0) as file:
            if file.write(block) < len(block):
                raise OSError(28, "No space left on device")


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
