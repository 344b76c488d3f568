"""E2, E29: a thread launches the kernels 5 ms after the call has returned."""

# expects: cheating|incorrect|contract_violation|runtime_error
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
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                y.copy_(F.relu(self.norm(x)))

        threading.Thread(target=fill, daemon=True).start()
        return y
