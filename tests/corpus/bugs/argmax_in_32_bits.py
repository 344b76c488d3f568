# task: row_argmax
# slip: wrong dtype of the output
"""Indices as int32, as a kernel has them."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.argmax(-1).int()
