"""E39: one row in sixty-four is left out, in the hope for a rule that forgives a percent."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = F.relu(self.norm(x))
        y[63::64] = 0.0
        return y
