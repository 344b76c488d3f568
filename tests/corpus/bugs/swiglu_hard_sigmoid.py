# task: swiglu
# slip: approximated activation
"""A piecewise linear sigmoid."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, gate, up):
        return gate * F.hardsigmoid(gate) * up
