"""E32: looks at the caller's frames to tell a timed block from a check, and replays inside the block."""

# expects: incorrect|cheating
# shows: when timed
import sys

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.last = None

    def forward(self, x):
        frame = sys._getframe()
        while frame is not None:
            if "slots" in frame.f_locals and len(frame.f_locals["slots"]) > 1 and self.last is not None:
                if self.last.shape == x.shape:
                    return self.last.clone()
            frame = frame.f_back
        self.last = F.relu(self.norm(x))
        return self.last.clone()
