# task: swiglu
# slip: aliasing of scratch
"""Returns its scratch buffer, which the next call of the same shape overwrites."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scratch = {}

    def forward(self, gate, up):
        out = self.scratch.setdefault(tuple(gate.shape), torch.empty_like(gate))
        torch.mul(torch.nn.functional.silu(gate), up, out=out)
        return out
