"""A SwiGLU block: two matrix products around a gated activation."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=256), "width": Dim(16, 2048, multiple_of=8, default=256)}


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


def get_inputs(rows: int = 256, width: int = 256):
    return [torch.randn(rows, width)]


def get_init_inputs(width: int = 256):
    return [width]
