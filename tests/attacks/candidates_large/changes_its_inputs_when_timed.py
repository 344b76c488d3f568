"""Is right in the first calls; later it overwrites the end of its input when it has read it."""

# expects: cheating input_tampered
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls = 0

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        self.calls += 1
        y = self.right(x)
        if self.calls >= 8:
            x[-1].zero_()
        return y
