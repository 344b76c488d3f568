"""E2, E29: returns at once and lets a thread fill the output a moment later."""

# expects: incorrect|contract_violation|cheating
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)

        def fill():
            time.sleep(0.005)
            with torch.no_grad():
                y.copy_(F.relu(self.norm(x)))

        threading.Thread(target=fill, daemon=True).start()
        return y
