"""Short causal convolution per channel with SiLU, and the state for the next chunk.

    y[b, c, t] = silu(bias[c] + sum over r of w[c, r] * z[b, c, t + r]),   z = state followed by x;   state' = the end of z

In front of the scan in Mamba and other state-space models, for prompts in chunks and for single tokens.

Where time is lost: libraries treat a convolution per channel in one dimension as an exotic case; around it, state and
input are concatenated and the new state copied. With four taps it is a sliding window in registers that reads x once.

Bytes: 8 per element of x at float32, plus 8 per element of the state. Source: Gu, Dao, "Mamba: Linear-Time Sequence
Modeling with Selective State Spaces", arXiv 2312.00752.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=4, gpu=32),
    "channels": Dim(1, 4096, default=256, gpu=4096),
    "length": Dim(1, 2048, default=100, gpu=256),
    "taps": Dim(2, 6, default=4),
}


class Model(nn.Module):
    def __init__(self, channels: int, taps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * taps**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.cat([state, x], dim=-1)
        y = F.silu(F.conv1d(z, self.weight, self.bias, groups=z.shape[1]))
        return y, z[..., x.shape[-1] :].contiguous()


def get_inputs(batch: int = 4, channels: int = 256, length: int = 100, taps: int = 4) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, length), torch.randn(batch, channels, taps - 1)]


def get_init_inputs(channels: int = 256, taps: int = 4) -> list[int]:
    return [channels, taps]
