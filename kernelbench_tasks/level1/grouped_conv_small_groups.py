"""Convolution in many groups of a few channels.

    y[n, g * m + k] = bias + sum over the m channels c of group g and the 3 x 3 window of w[g * m + k, c] * x[n, g * m + c]

The middle of ResNeXt, RegNet and EfficientNet-like networks; channel groups of 3, 5 or 7 come from pruning and from
color or sensor triples.

Where time is lost: a group of five channels is too small for a matrix unit, so libraries run it padded to 8 or 32
channels or as many tiny products in a row. Treated like a depthwise convolution, with a small matrix for each window in
registers, it is bound by reading the image once.

Operations: 18 * outputs * channels per group. Bytes at float32: 4 per pixel and output. Source: Xie et al., "Aggregated
Residual Transformations for Deep Neural Networks", arXiv 1611.05431.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=4, gpu=32),
    "groups": Dim(1, 96, default=24, gpu=96),
    "per_group": Dim(2, 7, default=5),
    "height": Dim(3, 96, default=28, gpu=56),
    "width": Dim(3, 96, default=30, gpu=56),
}


class Model(nn.Module):
    def __init__(self, groups: int, per_group: int):
        super().__init__()
        channels = groups * per_group
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs(
    batch: int = 4, groups: int = 24, per_group: int = 5, height: int = 28, width: int = 30
) -> list[torch.Tensor]:
    return [torch.randn(batch, groups * per_group, height, width)]


def get_init_inputs(groups: int = 24, per_group: int = 5) -> list[int]:
    return [groups, per_group]
