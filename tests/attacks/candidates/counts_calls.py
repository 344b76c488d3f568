"""E31: honest for a hundred calls, then the last answer again."""

# expects: incorrect|cheating
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        if self.calls < 100:
            self.last = F.relu(self.norm(x))
        return self.last.clone()
