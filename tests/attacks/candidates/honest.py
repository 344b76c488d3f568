"""No attack: the reference's own formula must pass every check."""

# expects: accepted
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return F.relu(self.norm(x))
