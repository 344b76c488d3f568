"""Largest value of each row; one NaN in a row makes the result NaN."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=96), "cols": Dim(8, 4096, default=160)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(dim=-1)


def get_inputs(rows: int = 96, cols: int = 160) -> list[torch.Tensor]:
    x = torch.randn(rows, cols)
    x[::2, torch.randint(0, cols, ())] = float("nan")
    return [x]


def get_init_inputs():
    return []
