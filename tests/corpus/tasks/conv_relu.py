"""A 3 x 3 convolution with bias, then ReLU."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"batch": Dim(1, 8, default=2), "channels": Dim(1, 32, default=8), "size": Dim(3, 48, default=24)}


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def get_inputs(batch: int = 2, channels: int = 8, size: int = 24) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int = 8) -> list[int]:
    return [channels]
