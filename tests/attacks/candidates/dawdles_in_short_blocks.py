"""Reads the length of its block from the harness's frame and sleeps in short ones, to inflate what a block costs."""

# expects: accepted
# at most: 1.05
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frame = sys._getframe()
        while frame is not None and "slots" not in frame.f_locals:
            frame = frame.f_back
        if frame is not None and len(frame.f_locals["slots"]) == 1:
            time.sleep(0.002)
        return F.relu(self.norm(x))
