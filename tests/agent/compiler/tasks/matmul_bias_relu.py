"""relu(x @ weight + bias), with all three dimensions free."""

from __future__ import annotations

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 4096, default=256),
    "inner": Dim(8, 2048, default=256),
    "outer": Dim(8, 2048, default=512),
}


class Model(nn.Module):
    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.bias = nn.Parameter(torch.randn(outer))

    def forward(self, x):
        return torch.relu(x @ self.weight + self.bias)


def get_inputs(rows: int = 256, inner: int = 256):
    return [torch.randn(rows, inner)]


def get_init_inputs(inner: int = 256, outer: int = 512):
    return [inner, outer]
