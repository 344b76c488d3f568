"""Scale and shift that are broadcast along dimensions that do not lie side by side.

    y[b, c, d, i, j] = x[b, c, d, i, j] * scale[c, i] + shift[b, d, j]

Correction of volumes: gains per channel and line, offsets per frame, slice and column of a detector.

Where time is lost: eager makes two passes; in one pass, generic code finds each of five indices by divisions, which at
odd sizes costs more than the memory. Walking along the inner dimension with the outer indices held fixed needs none.

Bytes: 8 per element at float32. Source: NumPy documentation, "Broadcasting"; Granlund, Montgomery, "Division by
Invariant Integers using Multiplication", 1994.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 8, default=3, gpu=8),
    "channels": Dim(1, 64, default=10, gpu=64),
    "depth": Dim(1, 32, default=7, gpu=16),
    "height": Dim(1, 128, default=37, gpu=64),
    "width": Dim(1, 128, default=53, gpu=64),
}


class Model(nn.Module):
    def __init__(self, channels: int, height: int):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, height, 1))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return x * self.scale + shift


def get_inputs(
    batch: int = 3, channels: int = 10, depth: int = 7, height: int = 37, width: int = 53
) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, depth, height, width), torch.randn(batch, 1, depth, 1, width)]


def get_init_inputs(channels: int = 10, height: int = 37) -> list[int]:
    return [channels, height]
