"""E2: a thread goes on computing after the call has returned; the answer does not depend on it."""

# expects: accepted|runtime_error
# gains: nothing
import threading

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        weights = torch.ones(64, 64)
        threading.Thread(target=lambda: [weights @ weights for _ in range(20)], daemon=True).start()
        return F.relu(self.norm(x))
