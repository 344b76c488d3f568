"""Computes once for a size, and returns that for every later content."""

# expects: cheating|incorrect|contract_violation|runtime_error
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.kept = None

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        if self.kept is None or len(self.kept) != len(x):
            self.kept = self.right(x)
        return self.kept.clone()
