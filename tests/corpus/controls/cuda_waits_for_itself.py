# task: row_sum
# style: synchronizes
# only: cuda
"""Waits for the device at the end of each call, out of caution."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.sum(-1)
        torch.cuda.synchronize()
        return y
