"""E71: a kernel that runs for a second stays behind when the turn ends."""

# expects: accepted|cheating|contract_violation|runtime_error|timeout
# gains: nothing
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def calls_of_block():
    """How many calls the block has in which we are, from the caller's frames."""
    frame = sys._getframe(2)
    while frame is not None:
        slots = frame.f_locals.get("slots")
        if isinstance(slots, list) and frame.f_code.co_name.startswith("_run_on"):
            return len(slots)
        frame = frame.f_back
    return 1


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.stream = torch.cuda.Stream()
        wait = torch.cuda.current_stream
        torch.cuda.synchronize = lambda device=None: wait().synchronize()
        self.until = 0.0

    def forward(self, x):
        y = F.relu(self.norm(x))
        if time.monotonic() > self.until and calls_of_block() > 1:
            self.until = time.monotonic() + 0.5
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(1_500_000_000)
        return y
