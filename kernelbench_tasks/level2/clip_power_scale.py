"""Clipping to bounds per channel, a signed power law and a gain.

    v = clamp(x, low[c], high[c]),   y = gain[c] * sign(v) * |v|^gamma[c]

Per-channel energy normalization of spectrograms, gamma correction of sensors, companding before quantization.

Where time is lost: clamp, sign, absolute value, power and two products are six passes. In one pass the power is what
costs: a logarithm and an exponential per element, in a library's most careful version unless the range of the numbers
is known.

Bytes: 8 per element at float32. Source: Wang et al., "Trainable Frontend For Robust and Far-Field Keyword Spotting",
arXiv 1607.05666.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 64, default=4, gpu=64),
    "channels": Dim(1, 256, default=40, gpu=256),
    "length": Dim(1, 8192, default=500, gpu=2048),
}


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.low = nn.Parameter(-1.5 + 0.1 * torch.randn(channels, 1))
        self.high = nn.Parameter(1.5 + 0.1 * torch.randn(channels, 1))
        self.gamma = nn.Parameter(0.7 + 0.05 * torch.randn(channels, 1))
        self.gain = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clipped = torch.clamp(x, self.low, self.high)
        return self.gain * clipped.sign() * clipped.abs().pow(self.gamma)


def get_inputs(batch: int = 4, channels: int = 40, length: int = 500) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, length)]


def get_init_inputs(channels: int = 40) -> list[int]:
    return [channels]
