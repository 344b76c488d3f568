# task: nan_row_max
# slip: NaN propagation
"""fmax returns the number when the other one is NaN."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        top = x[:, 0].clone()
        for column in range(1, x.shape[1]):
            top = torch.fmax(top, x[:, column])
        return top
