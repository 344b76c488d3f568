"""E71: leaves kernels that stream memory on a side stream, so that the rival's turn finds the device busy."""

# expects: accepted|cheating|contract_violation|runtime_error
# gains: nothing
import sys

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
        self.block = torch.empty(64 << 20, device="cuda")
        wait = torch.cuda.current_stream
        torch.cuda.synchronize = lambda device=None: wait().synchronize()

    def forward(self, x):
        y = F.relu(self.norm(x))
        if calls_of_block() > 1:
            with torch.cuda.stream(self.stream):
                self.block.mul_(1.0)
        return y
