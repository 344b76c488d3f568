"""Has its wrapper return what the graph writes, without the copy: the next replay overwrites it."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        globals()["copied"] = lambda value: value
        return F.relu(self.norm(x))
