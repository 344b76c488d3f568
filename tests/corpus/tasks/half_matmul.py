"""A product of half precision matrices, accumulated in float32 as every library does."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 256, default=64), "inner": Dim(8, 1024, default=512), "cols": Dim(8, 256, default=64)}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs(rows: int = 64, inner: int = 512, cols: int = 64) -> list[torch.Tensor]:
    return [torch.rand(rows, inner).half(), torch.rand(inner, cols).half()]


def get_init_inputs():
    return []
