# task: swiglu
# slip: operands swapped
"""silu of the other operand."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, gate, up):
        return gate * F.silu(up)
