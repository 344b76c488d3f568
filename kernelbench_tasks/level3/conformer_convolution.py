"""The convolution module of a Conformer.

    n = layer_norm(x);   u = glu(n @ enter.T + b1) along channels;   c = depthwise convolution of 15 taps of u over time
    y = x + silu(batch_norm(c)) @ leave.T + b2,   batch_norm with running statistics

Speech recognition and synthesis, in nearly every encoder since 2020.

Where time is lost: products want channels innermost, the convolution time: two transposed copies. Norm, gate,
statistics and activation are passes of their own around cheap products. A depthwise convolution works as well with
channels innermost, where everything elementwise joins a neighbor, and the fixed normalization folds into the taps.

Operations: 6 * frames * width^2 + 30 * frames * width. Bytes at float32: about 24 per element when fused. Source:
Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition", arXiv 2005.08100.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=16),
    "frames": Dim(1, 2048, default=150, gpu=2048),
    "width": Dim(4, 512, default=144, gpu=512),
}
TAPS = 15


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, TAPS, padding=TAPS // 2, groups=width, bias=False)
        self.statistics = nn.BatchNorm1d(width)
        self.leave = nn.Linear(width, width)
        nn.init.normal_(self.enter.weight, std=width**-0.5)
        nn.init.normal_(self.depthwise.weight, std=(4 / TAPS) ** 0.5)
        nn.init.normal_(self.leave.weight, std=(3 / width) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = F.glu(self.enter(self.norm(x)), dim=-1)
        mixed = self.statistics(self.depthwise(gated.transpose(1, 2)))
        return x + self.leave(F.silu(mixed).transpose(1, 2))


def get_inputs(batch: int = 2, frames: int = 150, width: int = 144) -> list[torch.Tensor]:
    return [torch.randn(batch, frames, width)]


def get_init_inputs(width: int = 144) -> list[int]:
    return [width]
