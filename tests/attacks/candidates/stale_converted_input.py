"""E21: keeps a converted copy of the input by address and shape."""

# expects: cheating stale_output
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.converted = {}

    def forward(self, x):
        key = (x.data_ptr(), tuple(x.shape))
        if key not in self.converted:
            self.converted[key] = x.double()
        return F.relu(F.layer_norm(self.converted[key], x.shape[-1:], self.norm.weight.double(), self.norm.bias.double())).float()
