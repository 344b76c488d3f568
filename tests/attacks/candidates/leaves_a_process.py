"""E29, E71: a helper process goes on between calls."""

# expects: contract_violation background_process
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

        import os
        import time

        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)

    def forward(self, x):
        return F.relu(self.norm(x))
