"""Short causal convolution per channel, forward and backward.

    y[b, c, t] = bias[c] + sum over r of w[c, r] * x[b, c, t + r - taps + 1], x = 0 before the start
    dx is the same with the taps reversed; dw[c, r] = sum over b, t of dy[b, c, t] * x[b, c, t + r - taps + 1]

Training of state-space language models and of convolutional speech models.

Where time is lost: libraries have slow paths for one channel per group, above all for the gradient of the weight: a sum
over batch and time for each of a few taps. All three gradients need x and dy once, in windows that slide through
registers.

Bytes at float32: 8 per element forward, 12 backward. Source: Gu, Dao, "Mamba: Linear-Time Sequence Modeling with
Selective State Spaces", arXiv 2312.00752; Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions",
arXiv 1901.10430.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=8),
    "channels": Dim(1, 2048, default=128, gpu=2048),
    "length": Dim(2, 4096, default=250, gpu=2048),
    "taps": Dim(2, 8, default=4),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * taps**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (self.weight.shape[-1] - 1, 0))
        return F.conv1d(padded, self.weight, self.bias, groups=x.shape[1])


def get_inputs(batch: int = 2, channels: int = 128, length: int = 250) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, length)]


def get_init_inputs(channels: int = 128, taps: int = 4) -> list[int]:
    return [channels, taps]
