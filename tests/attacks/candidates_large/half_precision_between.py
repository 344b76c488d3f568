"""Computes all but the rows at both ends in half precision."""

# expects: incorrect
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
        y = self.right(x)
        y[64:-64, : x.shape[1]] = F.relu(
            F.layer_norm(x[64:-64].half(), x.shape[1:], self.norm.weight.half(), self.norm.bias.half())
        )
        return y
