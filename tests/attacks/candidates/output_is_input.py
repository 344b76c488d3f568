"""E28: writes the result into the input's memory and returns that."""

# expects: contract_violation output_aliases_input
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return x.copy_(F.relu(self.norm(x)))
