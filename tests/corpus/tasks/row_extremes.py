"""Smallest and largest value of each row: two outputs."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=96), "cols": Dim(8, 4096, default=160)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.amin(dim=-1), x.amax(dim=-1)


def get_inputs(rows: int = 96, cols: int = 160) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
