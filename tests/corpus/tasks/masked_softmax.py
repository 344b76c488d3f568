"""Softmax of scores under a mask of minus infinities, as attention has it; the last key is never masked."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=96), "cols": Dim(8, 4096, default=160)}


class Model(nn.Module):
    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores + mask, dim=-1)


def get_inputs(rows: int = 96, cols: int = 160) -> list[torch.Tensor]:
    mask = torch.zeros(rows, cols).masked_fill(torch.rand(rows, cols) < 0.5, float("-inf"))
    mask[:, -1] = 0.0
    mask[: rows // 2, : cols - 1] = float("-inf")
    return [torch.randn(rows, cols), mask]


def get_init_inputs():
    return []
