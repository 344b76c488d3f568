"""E33: sys.exit(0) from inside forward."""

# expects: runtime_error
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        raise SystemExit(0)
