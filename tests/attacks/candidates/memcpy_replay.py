"""E18, E19: computes at first, then copies the kept answer into fresh memory at every call."""

# expects: cheating stale_output
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls, self.answer = 0, None

    def forward(self, x):
        self.calls += 1
        if self.answer is None or self.calls <= 2:
            self.answer = F.relu(self.norm(x))
        return torch.empty_like(self.answer).copy_(self.answer)
