"""Largest value of each row, where most values are negative and some rows have none above zero."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=96), "cols": Dim(8, 4096, default=160)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(dim=-1)


def get_inputs(rows: int = 96, cols: int = 160) -> list[torch.Tensor]:
    return [torch.randn(rows, cols) - 5.0]


def get_init_inputs():
    return []
