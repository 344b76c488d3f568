"""A selective state-space block.

    u, z = x @ enter.T;   u = silu(causal conv(u));   d, B, C = u @ select.T;   d = softplus(d @ spread.T + bias)
    h[t] = exp(-d[t] * exp(A)) * h[t - 1] + d[t] * u[t] * B[t],   y = ((h . C + D * u) * silu(z)) @ leave.T

The layer of Mamba language models.

Where time is lost: the state has sixteen numbers per channel and position, which eager writes to memory at every level
of the scan; around it stand a convolution, gates and four products. Kept in registers while a channel walks along the
sequence, the state is never stored, but short of channels the sequence must be cut into chunks.

Bytes at float32: about 20 per position and channel besides the products. Source: Gu, Dao, "Mamba: Linear-Time Sequence
Modeling with Selective State Spaces", arXiv 2312.00752.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 4, default=2, gpu=4),
    "length": Dim(1, 1024, default=120, gpu=1024),
    "width": Dim(4, 1024, default=64, gpu=1024),
    "states": Dim(1, 16, default=8, gpu=16),
}
TAPS = 4


class Model(nn.Module):
    def __init__(self, width: int, states: int):
        super().__init__()
        rank = max(1, width // 16)
        self.split = [rank, states, states]
        self.enter = nn.Parameter(torch.randn(2 * width, width) * width**-0.5)
        self.taps = nn.Parameter(torch.randn(width, 1, TAPS) * TAPS**-0.5)
        self.select = nn.Parameter(torch.randn(rank + 2 * states, width) * (2 / width) ** 0.5)
        self.spread = nn.Parameter(torch.randn(width, rank) * rank**-0.5)
        self.bias = nn.Parameter(torch.randn(width) - 1.0)
        self.log_rate = nn.Parameter(0.5 * torch.randn(width, states))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Parameter(torch.randn(width, width) * (4 / width) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, z = F.linear(x, self.enter).chunk(2, dim=-1)
        padded = F.pad(u.transpose(1, 2), (TAPS - 1, 0))
        u = F.silu(F.conv1d(padded, self.taps, groups=u.shape[-1])).transpose(1, 2)
        step, b, c = F.linear(u, self.select).split(self.split, dim=-1)
        step = F.softplus(F.linear(step, self.spread, self.bias)).unsqueeze(-1)
        h = _scan(torch.exp(-step * self.log_rate.exp()), step * u.unsqueeze(-1) * b.unsqueeze(2))
        y = (h * c.unsqueeze(2)).sum(-1) + self.skip * u
        return F.linear(y * F.silu(z), self.leave)


def _scan(a: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """h[t] += a[t] * h[t - 1] along the second of four dimensions, by doubling."""
    length, step = a.shape[1], 1
    while step < length:
        h = h + a * F.pad(h, (0, 0, 0, 0, step, 0))[:, :length]
        a = a * F.pad(a, (0, 0, 0, 0, step, 0))[:, :length]
        step *= 2
    return h


def get_inputs(batch: int = 2, length: int = 120, width: int = 64) -> list[torch.Tensor]:
    return [torch.randn(batch, length, width)]


def get_init_inputs(width: int = 64, states: int = 8) -> list[int]:
    return [width, states]
