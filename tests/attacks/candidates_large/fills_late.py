"""Returns at once; a thread fills the second half of the rows 5 ms later, on a stream of its own."""

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

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        y = torch.zeros(len(x), 2 * x.shape[1], device=x.device)
        half = len(x) // 2
        y[:half] = self.right(x[:half])

        def fill():
            time.sleep(0.005)
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                y[half:] = self.right(x[half:])

        threading.Thread(target=fill, daemon=True).start()
        return y
