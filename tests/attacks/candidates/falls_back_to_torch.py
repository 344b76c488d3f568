"""E54: its own code fails and torch answers, which is right and earns nothing."""

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
        try:
            return torch.ops.library_that_is_not_there.norm_relu(x, self.norm.weight, self.norm.bias)
        except AttributeError:
            return F.relu(self.norm(x))
