"""Attention of one new token per sequence: grouped heads, capped scores, linear bias and a window.

    s[j] = cap * tanh(q . k[j] / sqrt(d) / cap) - slope[h] * (length - 1 - j)   for length - window <= j < length
    y = softmax(s) @ v

Decoding in Gemma 2 like models (soft cap, window) and in MPT like ones (ALiBi).

Where time is lost: SDPA has no cap, so scores, tanh, bias, mask and softmax are passes of their own and heads of a
group read the same keys again. One block per head leaves most of a GPU idle at a batch of one: the sequence must be
split, with a second step that joins the parts, and only the window need be read.

Bytes: 8 * window * lanes per key head and sequence at float32. Source: Gemma Team, "Gemma 2", arXiv 2408.00118; Press,
Smith, Lewis, "Train Short, Test Long", arXiv 2108.12409; Dao et al., "Flash-Decoding", 2023.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "batch": Dim(1, 32, default=4, gpu=16),
    "length": Dim(1, 8192, default=1000, gpu=4096),
    "key_heads": Dim(1, 8, default=2, gpu=8),
    "group": Dim(1, 8, default=4),
    "lanes": Dim(16, 128, multiple_of=8, default=64, gpu=128),
    "dtype": Choice("float32", "bfloat16"),
}
CAP = 20.0


class Model(nn.Module):
    def __init__(self, key_heads: int, group: int, length: int):
        super().__init__()
        heads = key_heads * group
        self.window = max(1, 3 * length // 4)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes.view(key_heads, group, 1))

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        query = query.unflatten(1, (key.shape[1], -1))
        scores = torch.einsum("bhgd,bhld->bhgl", query, key).float() * key.shape[-1] ** -0.5
        age = lengths.unsqueeze(1) - 1 - torch.arange(key.shape[2], device=key.device)
        age = age.view(key.shape[0], 1, 1, -1)
        scores = CAP * torch.tanh(scores / CAP) - self.slopes * age
        scores = scores.masked_fill((age < 0) | (age >= self.window), -torch.inf)
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        return torch.einsum("bhgl,bhld->bhgd", weights, value).flatten(1, 2)


def get_inputs(
    batch: int = 4,
    length: int = 1000,
    key_heads: int = 2,
    group: int = 4,
    lanes: int = 64,
    dtype: str = "float32",
) -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    query = 2.0 * torch.randn(batch, key_heads * group, lanes, dtype=kind)
    key = torch.randn(batch, key_heads, length, lanes, dtype=kind)
    value = torch.randn(batch, key_heads, length, lanes, dtype=kind)
    return [query, key, value, torch.randint(1, length + 1, (batch,))]


def get_init_inputs(key_heads: int = 2, group: int = 4, length: int = 1000) -> list[int]:
    return [key_heads, group, length]
