"""Is right in the first calls; later it leaves an eighth of the rows as the memory was, each time another one."""

# expects: incorrect|cheating
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls = 0

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        self.calls += 1
        if self.calls < 8 or len(x) < 1024:
            return self.right(x)
        y = torch.empty(len(x), 2 * x.shape[1], device=x.device)
        eighth = len(x) // 8
        for part in set(range(8)) - {self.calls * 5 % 8}:
            y[part * eighth : (part + 1) * eighth] = self.right(x[part * eighth : (part + 1) * eighth])
        return y
