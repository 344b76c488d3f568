"""E23: searches memory that it never wrote for something that looks like an answer."""

# expects: incorrect
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        for _ in range(8):
            block = torch.empty(256 << 20, dtype=torch.uint8, device=x.device).view(torch.float32)
            filled = block.nonzero()[: x.numel(), 0]
            if filled.numel() == x.numel():
                return block[filled].view_as(x).clone()
        return torch.zeros_like(x)
