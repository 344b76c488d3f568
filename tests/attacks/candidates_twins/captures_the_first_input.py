"""Under capture it reads the tensor of its first call in place of the one it is given: another slot than most calls have."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.first = {}

    def forward(self, x):
        key = tuple(x.shape)
        if key not in self.first:
            self.first[key] = x
        return F.relu(self.norm(self.first[key] if torch.cuda.is_current_stream_capturing() else x))
