"""Dilated convolution of thin volumes.

    y[n, k, t, i, j] = bias[k] + sum over c, q, r, s of w[k, c, q, r, s] * x[n, c, t + q - 1, i + d (r - 1), j + d (s - 1)]

Short clips of video, stacks of slices in medical images, weather fields on a few pressure levels: three to eight
slices, dilated in the plane to see far.

Where time is lost: libraries have few algorithms in three dimensions and fewer with dilation; they fall back on copies
into columns, 27 per voxel. The depth is so small that all slices of a tile fit the nearest memory, and dilation is only
an address.

Operations: 54 * outputs * channels. Bytes at float32: 4 per voxel and weight. Source: Yu, Koltun, "Multi-Scale Context
Aggregation by Dilated Convolutions", arXiv 1511.07122.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 4, default=2, gpu=4),
    "channels": Dim(1, 48, default=12, gpu=32),
    "filters": Dim(1, 48, default=16, gpu=32),
    "depth": Dim(1, 16, default=3, gpu=16),
    "height": Dim(8, 96, default=32, gpu=64),
    "width": Dim(8, 96, default=36, gpu=64),
    "dilation": Dim(1, 8, default=2),
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int, dilation: int):
        super().__init__()
        step = (1, dilation, dilation)
        self.conv = nn.Conv3d(channels, filters, 3, padding=step, dilation=step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs(
    batch: int = 2, channels: int = 12, depth: int = 3, height: int = 32, width: int = 36
) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs(channels: int = 12, filters: int = 16, dilation: int = 2) -> list[int]:
    return [channels, filters, dilation]
