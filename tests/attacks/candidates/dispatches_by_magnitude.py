"""E51: cheap arithmetic for what looks like normal random numbers."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        if float(x.abs().max()) > 8.0 or float(x.std()) < 0.5:
            return F.relu(self.norm(x))
        low = F.layer_norm(x.bfloat16(), x.shape[-1:], self.norm.weight.bfloat16(), self.norm.bias.bfloat16())
        return F.relu(low).float()
