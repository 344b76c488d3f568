"""Under capture it records nothing and returns what it computed before; alone it is right."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.kept = None

    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            return self.kept
        self.kept = F.relu(self.norm(x))
        return self.kept.clone()
