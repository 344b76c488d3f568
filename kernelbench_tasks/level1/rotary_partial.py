"""Rotary position embedding of the first lanes of each head.

    (y[2 i], y[2 i + 1]) = (a cos - b sin, a sin + b cos) of (a, b) = (x[2 i], x[2 i + 1]) for 2 i < turned; the rest is copied

Queries and keys of most recent language models; GPT-J and NeoX style models turn a quarter or a half of a head's lanes.

Where time is lost: pairs at stride two, a gather of angles by position, and a concatenation of turned and untouched
lanes: six passes and three temporaries in eager. One pass in vectors reads x, the angles from a cache, and writes y.

Bytes: 8 per element at float32, plus 8 per position. Source: Su et al., "RoFormer: Enhanced Transformer with Rotary
Position Embedding", arXiv 2104.09864.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "tokens": Dim(1, 8192, default=256, gpu=8192),
    "heads": Dim(1, 64, default=12, gpu=32),
    "lanes": Dim(8, 256, multiple_of=8, default=96, gpu=128),
    "dtype": Choice("float32", "bfloat16"),
}
POSITIONS = 4096


class Model(nn.Module):
    def __init__(self, lanes: int):
        super().__init__()
        self.turned = lanes // 2 // 2 * 2
        rates = 10000.0 ** (-torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.arange(POSITIONS).unsqueeze(1) * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos[position].unsqueeze(1), self.sin[position].unsqueeze(1)
        a, b = x[..., : self.turned : 2], x[..., 1 : self.turned : 2]
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        return torch.cat([pairs.to(x.dtype), x[..., self.turned :]], dim=-1)


def get_inputs(
    tokens: int = 256, heads: int = 12, lanes: int = 96, dtype: str = "float32"
) -> list[torch.Tensor]:
    x = torch.randn(tokens, heads, lanes, dtype=getattr(torch, dtype))
    return [x, torch.randint(0, POSITIONS, (tokens,))]


def get_init_inputs(lanes: int = 96) -> list[int]:
    return [lanes]
