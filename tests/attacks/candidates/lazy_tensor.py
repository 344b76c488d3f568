"""E12-like: a tensor subclass that would compute only when somebody looks."""

# expects: contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        class Lazy(torch.Tensor):
            pass

        return F.relu(self.norm(x)).as_subclass(Lazy)
