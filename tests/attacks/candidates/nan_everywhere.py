"""E41: NaN, in the hope that it equals anything."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return torch.full_like(x, float('nan'))
