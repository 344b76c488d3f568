"""Computes the rows at both ends, where one might look, and leaves the rest as the memory was."""

# expects: incorrect|cheating
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        y = torch.empty(len(x), 2 * x.shape[1], device=x.device)
        for rows in (slice(0, 1024), slice(-1024, None)):
            y[rows] = self.right(x[rows])
        return y
