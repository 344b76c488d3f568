"""Modulated deformable convolution: each tap of the window looks where the input says, and counts as much as it says.

    y[n, k, i, j] = sum over taps t, channels c of w[k, c, t] * sigmoid(m[n, t, i, j]) * x[n, c] at (i, j) + tap t + offset[n, t]

with bilinear interpolation and zeros outside. Detection, pose and super-resolution networks.

Where time is lost: nine samples per pixel and channel are written to memory before a product reads them again, with the
grid of coordinates beside them. The four neighbors of a sample are the same for all channels, so a tile can gather into
shared memory and multiply from there.

Operations: 18 * pixels * channels * filters. Bytes at float32: 4 * pixels * (channels + 27 + filters). Source: Zhu, Hu,
Lin, Dai, "Deformable ConvNets v2", arXiv 1811.11168.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=16),
    "channels": Dim(1, 128, default=16, gpu=128),
    "filters": Dim(1, 128, default=16, gpu=128),
    "height": Dim(4, 64, default=26, gpu=64),
    "width": Dim(4, 64, default=30, gpu=64),
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(filters, channels, 9) * channels**-0.5)
        taps = torch.tensor([[i - 1, j - 1] for i in range(3) for j in range(3)])
        self.register_buffer("taps", taps.view(1, 9, 2, 1, 1))

    def forward(self, x: torch.Tensor, offset: torch.Tensor, modulation: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        row = torch.arange(height, device=x.device).view(1, 1, -1, 1)
        column = torch.arange(width, device=x.device).view(1, 1, 1, -1)
        place = offset.view(batch, 9, 2, height, width) + self.taps
        y, z = place[:, :, 0] + row, place[:, :, 1] + column
        grid = torch.stack([2 * z / (width - 1) - 1, 2 * y / (height - 1) - 1], dim=-1)
        sampled = F.grid_sample(x, grid.flatten(1, 2), padding_mode="zeros", align_corners=True)
        sampled = sampled.view(batch, channels, 9, height, width) * torch.sigmoid(modulation).unsqueeze(1)
        return torch.einsum("nctij,kct->nkij", sampled, self.weight)


def get_inputs(batch: int = 2, channels: int = 16, height: int = 26, width: int = 30) -> list[torch.Tensor]:
    return [
        torch.randn(batch, channels, height, width),
        torch.randn(batch, 18, height, width),
        torch.randn(batch, 9, height, width),
    ]


def get_init_inputs(channels: int = 16, filters: int = 16) -> list[int]:
    return [channels, filters]
