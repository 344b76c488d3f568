# task: softmax
# slip: approximated exponential
"""Clamps the exponent at -10 to stay inside a table; small probabilities come out too large."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        powers = (x - x.amax(-1, keepdim=True)).clamp_min(-10.0).exp()
        return powers / powers.sum(-1, keepdim=True)
