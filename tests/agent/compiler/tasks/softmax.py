"""Softmax over the last dimension in two dtypes."""

from __future__ import annotations

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512),
    "cols": Dim(8, 4096, default=1024),
    "dtype": Choice("float32", "bfloat16"),
}


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32"):
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs():
    return []
