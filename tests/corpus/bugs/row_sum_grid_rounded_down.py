# task: row_sum
# slip: integer division rounding of the grid
"""rows // 32 programs; the rows after the last whole group are never written."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows = x.shape[0]
        y = torch.empty(rows, device=x.device)
        for group in range(rows // 32):
            at = slice(group * 32, group * 32 + 32)
            y[at] = x[at].sum(-1)
        return y
