"""Causal attention with grouped heads, forward and backward.

    y[i] = softmax over j <= i of (q[i] . k[j] / sqrt(d)) times v[j],   several query heads share a key head

The heart of training a language model, at sequence lengths that are no multiple of a tile.

Where time is lost: library kernels are excellent at long, round lengths; short or odd ones leave tiles empty, grouped
heads are expanded to copies on some paths and their gradients summed afterwards, and at the diagonal half of each tile
is wasted.

Operations: about 7 * length^2 * lanes per query head. Bytes at float32: 32 per position and lane. Source: Dao,
"FlashAttention-2", arXiv 2307.08691; Ainslie et al., "GQA", arXiv 2305.13245.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "batch": Dim(1, 2, default=1),
    "key_heads": Dim(1, 8, default=2, gpu=8),
    "group": Dim(1, 4, default=2, gpu=4),
    "length": Dim(2, 2048, default=200, gpu=2048),
    "lanes": Dim(16, 128, multiple_of=16, default=64, gpu=128),
    "dtype": Choice("float32", "bfloat16"),
}
DIRECTION = "forward_backward"
PRECISION = "bf16"


class Model(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def get_inputs(
    batch: int = 1,
    key_heads: int = 2,
    group: int = 2,
    length: int = 200,
    lanes: int = 64,
    dtype: str = "float32",
) -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    few = (batch, key_heads, length, lanes)
    query = torch.randn(batch, key_heads * group, length, lanes, dtype=kind)
    return [query, torch.randn(few, dtype=kind), torch.randn(few, dtype=kind)]


def get_init_inputs() -> list[int]:
    return []
