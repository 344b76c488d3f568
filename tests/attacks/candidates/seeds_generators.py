"""E26: patches and reseeds the generators that inputs might come from."""

# expects: accepted
# gains: nothing
import os
import random
import secrets

torch_seed, os.urandom = 0, lambda count: bytes(count)
secrets.randbits = secrets.randbelow = lambda limit: 0

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        torch.manual_seed(0)
        random.seed(0)
        return F.relu(self.norm(x))
