"""Works hard off the clock before each of its turns, so that caches and clocks are at their best in it."""

# expects: accepted
# gains: nothing
import gc
import time

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        matrix = torch.randn(256, 256)

        def heated(phase, facts):
            until = time.perf_counter() + 0.01
            while phase == "start" and time.perf_counter() < until:
                matrix @ matrix

        # The harness collects garbage before each turn, and never in one.
        gc.callbacks[:] = [heated]

    def forward(self, x):
        return F.relu(self.norm(x))
