"""A block of wide depthwise convolution, norm and MLP, over channels-last images.

    c = depthwise convolution of 7 x 7 of x;   y = x + gain * (gelu(layer_norm over channels of c @ enter.T + b) @ leave.T + d)

ConvNeXt and what followed it: backbones for detection and segmentation.

Where time is lost: the convolution of 49 taps per channel has a slow path in many libraries; the norm wants channels
innermost and the convolution outermost; the MLP's middle, four times as wide as the image, goes to memory twice. A tile
of pixels with all its channels fits on chip between the convolution and the end.

Operations: 16 * pixels * channels^2 + 98 * pixels * channels. Bytes at float32: 8 per pixel and channel at best.
Source: Liu et al., "A ConvNet for the 2020s", arXiv 2201.03545.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=1, gpu=32),
    "height": Dim(1, 72, default=18, gpu=56),
    "width": Dim(1, 72, default=22, gpu=56),
    "channels": Dim(4, 384, default=48, gpu=96),
}


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.enter = nn.Linear(channels, 4 * channels)
        self.leave = nn.Linear(4 * channels, channels)
        self.gain = nn.Parameter(torch.ones(channels))
        nn.init.normal_(self.enter.weight, std=channels**-0.5)
        nn.init.normal_(self.leave.weight, std=(2 * channels) ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.norm(self.depthwise(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        return x + self.gain * self.leave(F.gelu(self.enter(mixed)))


def get_inputs(batch: int = 1, height: int = 18, width: int = 22, channels: int = 48) -> list[torch.Tensor]:
    return [torch.randn(batch, height, width, channels)]


def get_init_inputs(channels: int = 48) -> list[int]:
    return [channels]
