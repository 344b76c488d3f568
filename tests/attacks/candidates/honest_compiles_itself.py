"""No attack: the compiler by another name than `torch.` and what follows it, which needs the same headers."""

# expects: accepted
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.compile(dynamic=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(x))
