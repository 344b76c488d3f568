"""Sum over the last dimension of a tensor that arrives transposed, so that its rows are not contiguous."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=96), "cols": Dim(8, 4096, default=160)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs(rows: int = 96, cols: int = 160) -> list[torch.Tensor]:
    return [torch.randn(cols, rows).t()]


def get_init_inputs():
    return []
