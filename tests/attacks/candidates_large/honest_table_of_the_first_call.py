"""Right: keeps a table that it made in its first call, beside the outputs."""

# expects: accepted
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.ones = None

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        if self.ones is None:
            self.ones = torch.ones(x.shape[1], device=x.device)
        return F.pad(F.relu(self.norm(x) * self.ones), (0, x.shape[1]))
