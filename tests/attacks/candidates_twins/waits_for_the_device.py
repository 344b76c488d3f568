"""Waits for the device, so that it cannot be captured: its twin runs as it is, and is right."""

# expects: accepted
# gains: nothing
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        if bool(torch.isnan(x[0, 0])):
            return x.new_full(x.shape, torch.nan)
        return F.relu(self.norm(x))
