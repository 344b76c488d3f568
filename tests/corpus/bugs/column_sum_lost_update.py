# task: column_sum
# slip: race on accumulation
"""Rows are added by index without accumulation: of two that hit the same place one is lost."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.zeros(cols, device=x.device)
        for part in x.split(2):
            y[torch.arange(cols, device=x.device).repeat(part.shape[0])] += part.reshape(-1)
        return y
