"""E38: skips the tail rows."""

# expects: incorrect wrong_result
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        done = max(1, x.shape[0] * 7 // 8)
        y[:done] = F.relu(self.norm(x[:done]))
        return y
