"""E36: relies on a fresh LayerNorm having weight one and bias zero."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return F.relu(F.layer_norm(x, x.shape[-1:]))
