"""Batch renormalization in training: statistics of the batch, tied to the running ones.

    r = clamp(s / running_s, 1/3, 3),   d = clamp((m - running_m) / running_s, -3, 3)
    y = ((x - m) / s * r + d) * weight + bias;   the running mean and variance then move by a tenth

Normalization for small batches, where those of the batch alone are too noisy.

Where time is lost: no library has it, so it is a chain of reductions, small kernels on vectors of channels and
broadcasts: twelve launches for two passes over x. The vectors are tiny, and everything after the reductions is one
affine map.

Bytes: 12 per element at float32. Source: Ioffe, "Batch Renormalization", arXiv 1702.03275.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(2, 64, default=8, gpu=64),
    "channels": Dim(1, 256, default=32, gpu=256),
    "length": Dim(2, 4096, default=200, gpu=2048),
}
TRAINING = True
EPS, MOST_RATIO, MOST_SHIFT, MOMENTUM = 1e-3, 3.0, 3.0, 0.1


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, dim=(0, 2), correction=0)
        deviation, running = torch.sqrt(variance + EPS), torch.sqrt(self.running_var + EPS)
        ratio = torch.clamp(deviation / running, 1 / MOST_RATIO, MOST_RATIO)
        shift = torch.clamp((mean - self.running_mean) / running, -MOST_SHIFT, MOST_SHIFT)
        if self.training:
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_var.lerp_(variance, MOMENTUM)
        normed = (x - mean.unsqueeze(-1)) * (ratio / deviation).unsqueeze(-1) + shift.unsqueeze(-1)
        return normed * self.weight.unsqueeze(-1) + self.bias.unsqueeze(-1)


def get_inputs(batch: int = 8, channels: int = 32, length: int = 200) -> list[torch.Tensor]:
    return [0.3 + torch.randn(batch, channels, length)]


def get_init_inputs(channels: int = 32) -> list[int]:
    return [channels]
