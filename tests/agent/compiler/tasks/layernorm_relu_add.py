"""relu(LayerNorm(x)) + residual, with both dimensions free."""

from __future__ import annotations

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 16384, default=512), "cols": Dim(8, 8192, default=1024)}


class Model(nn.Module):
    def __init__(self, cols: int, eps: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x, residual):
        return torch.relu(self.norm(x)) + residual


def get_inputs(rows: int = 512, cols: int = 1024):
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs(cols: int = 1024):
    return [cols]
