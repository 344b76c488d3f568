"""E1: works on a stream of its own and lets nobody wait for it."""

# expects: cheating|incorrect
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.stream = torch.cuda.Stream()

    def forward(self, x):
        y = torch.empty_like(x)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(200_000)
            y.copy_(F.relu(self.norm(x)))
        return y
