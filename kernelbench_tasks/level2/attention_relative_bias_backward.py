"""Attention with a learned bias per head and distance, forward and backward.

    y = softmax(q @ k.T / sqrt(d) + table[h, clamp(i - j, -reach, reach) + reach]) @ v

T5, Swin and music transformers, in training; the table gets a gradient, too.

Where time is lost: the bias is expanded to a matrix per head, and its gradient is a matrix per head again, which is
then summed along diagonals into a few hundred numbers by scattered additions. Kernels for attention take a bias but do
not give back such a gradient without storing all scores. A kernel can sum diagonals per tile.

Operations: about 14 * length^2 * lanes per head. Bytes at float32: 32 per position and lane at best. Source: Raffel et
al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", arXiv 1910.10683.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 8, default=2, gpu=8),
    "heads": Dim(1, 12, default=4, gpu=12),
    "length": Dim(2, 1024, default=150, gpu=1024),
    "lanes": Dim(8, 64, multiple_of=8, default=32, gpu=64),
    "reach": Dim(1, 128, default=32, gpu=128),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, heads: int, length: int, reach: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 2 * reach + 1))
        place = torch.arange(length)
        distance = (place.unsqueeze(1) - place).clamp(-reach, reach) + reach
        self.register_buffer("distance", distance)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        bias = self.table[:, self.distance].unsqueeze(0)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def get_inputs(batch: int = 2, heads: int = 4, length: int = 150, lanes: int = 32) -> list[torch.Tensor]:
    shape = (batch, heads, length, lanes)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs(heads: int = 4, length: int = 150, reach: int = 32) -> list[int]:
    return [heads, length, reach]
