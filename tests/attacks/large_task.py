"""The task that planted candidates attack at large shapes: LayerNorm, ReLU, and as many zeros behind each row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 16384, default=64), "cols": Dim(8, 8192, default=96)}


class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))


def get_inputs(rows: int = 64, cols: int = 96) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs(cols: int = 96) -> list[int]:
    return [cols]
