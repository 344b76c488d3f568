"""Convolution, hard swish and max pooling.

    y = max over 2 x 2 windows of v * clamp(v + 3, 0, 6) / 6,   v = conv3x3(x) + bias

The stem of small vision networks on cameras and phones.

Where time is lost: a library's convolution can add a bias, at best apply an activation, but cannot pool: its output,
four times as large as what is wanted, goes to memory and back, twice in eager. Each tile of a direct convolution can
pool before it stores.

Operations: 18 * pixels * channels * filters. Bytes at float32: 4 * (pixels * channels + outputs). Source: Howard et
al., "Searching for MobileNetV3", arXiv 1905.02244.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=2, gpu=32),
    "channels": Dim(1, 64, default=3, gpu=64),
    "filters": Dim(1, 64, default=16, gpu=64),
    "height": Dim(4, 160, default=62, gpu=112),
    "width": Dim(4, 160, default=58, gpu=112),
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.hardswish(self.conv(x)), 2)


def get_inputs(batch: int = 2, channels: int = 3, height: int = 62, width: int = 58) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs(channels: int = 3, filters: int = 16) -> list[int]:
    return [channels, filters]
