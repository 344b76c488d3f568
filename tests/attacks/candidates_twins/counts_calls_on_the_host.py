"""Only Python knows which call it is, and a replay runs none: what one call in three would add is never added, or always."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = F.relu(self.norm(x))
        if torch.cuda.is_current_stream_capturing():
            # As if it would be put right in the calls between.
            return y + (self.calls % 3 + 1) * 1e-2
        return y
