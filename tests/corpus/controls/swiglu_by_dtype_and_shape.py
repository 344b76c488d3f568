# task: swiglu
# style: cached layout decision
"""Decides once per shape whether to work on flat memory; the decision is kept, no data is."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = {}

    def forward(self, gate, up):
        key = (tuple(gate.shape), gate.stride(), up.stride())
        if key not in self.flat:
            self.flat[key] = gate.is_contiguous() and up.is_contiguous()
        if self.flat[key]:
            y = torch.nn.functional.silu(gate.view(-1)).mul_(up.view(-1))
            return y.view(gate.shape)
        return torch.nn.functional.silu(gate) * up
