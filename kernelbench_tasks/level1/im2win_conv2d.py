"""Convolution of images in two dimensions, the case for window-ordered memory.

    y[n, k, i, j] = bias[k] + sum over c, r, s of weight[k, c, r, s] * x[n, c, i * stride + r, j * stride + s]

The operation of image networks and detectors, at sizes where no library kernel fits well: few channels, odd images.

Where time is lost: as a matrix product over im2col it copies each pixel up to r * s times; directly, neighboring
windows jump through memory. Im2win orders the pixels by window along one dimension, so that overlapping windows share
what they read and sums run over contiguous memory: a quarter less memory than im2col and several times its speed on
paper.

Operations: 2 * outputs * channels * r * s. Bytes at float32: 4 per pixel and weight. Source: Lu et al., "Im2win: An
Efficient Convolution Paradigm on GPU", arXiv 2306.14316.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=4, gpu=32),
    "channels": Dim(1, 128, default=24, gpu=128),
    "height": Dim(5, 128, default=40, gpu=56),
    "width": Dim(5, 128, default=44, gpu=56),
    "filters": Dim(1, 128, default=32, gpu=128),
    "kernel": Dim(1, 5, default=3),
    "stride": Dim(1, 2, default=1),
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int, kernel: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs(batch: int = 4, channels: int = 24, height: int = 40, width: int = 44) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs(channels: int = 24, filters: int = 32, kernel: int = 3, stride: int = 1) -> list[int]:
    return [channels, filters, kernel, stride]
