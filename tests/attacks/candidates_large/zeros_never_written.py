"""Does not write the zeros behind the rows."""

# expects: incorrect|cheating
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
        y = torch.empty(len(x), 2 * x.shape[1], device=x.device)
        y[:, : x.shape[1]] = F.relu(self.norm(x))
        return y
