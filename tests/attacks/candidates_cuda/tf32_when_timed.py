"""E48, E49: strict float32 while a single call is checked, TF32 in timed blocks."""

# expects: cheating|incorrect
# task: matmul_bias_relu
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
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = calls_of_block() > 1
        return F.relu(self.linear(x))
