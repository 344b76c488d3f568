"""A transformer block for one new token per sequence, over a cache of keys and values.

    n = rms_norm(x); q, k, v = n @ qkv.T; q, k rotated to position length[b]
    x = x + attention(q, cached keys below length[b] and k, likewise values) @ out.T
    y = x + (silu(m @ gate.T) * (m @ up.T)) @ down.T,   m = rms_norm(x);   y, k and v are returned

What runs for every layer and every token when a language model writes.

Where time is lost: some fifteen launches of a few microseconds each, while the weights could stream through once
without a break; attention copies the cache to append one token, and gives a block to a head when there are few
sequences. Fusing norms into products, both halves of the gate into one, the rotation into the projection, and splitting
the cache over the machine.

Bytes: the weights and the used part of the cache, once. Source: Touvron et al., "LLaMA", arXiv 2302.13971; Pope et al.,
"Efficiently Scaling Transformer Inference", arXiv 2211.05102.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=16),
    "length": Dim(1, 4096, default=300, gpu=4096),
    "key_heads": Dim(1, 8, default=2, gpu=8),
    "group": Dim(1, 4, default=2, gpu=4),
    "lanes": Dim(16, 128, multiple_of=16, default=64, gpu=128),
    "middle": Dim(16, 14336, multiple_of=16, default=672, gpu=14336),
    "dtype": Choice("float32", "bfloat16"),
}


class Model(nn.Module):
    def __init__(self, length: int, key_heads: int, group: int, lanes: int, middle: int, dtype: str):
        super().__init__()
        kind, width = getattr(torch, dtype), key_heads * group * lanes
        self.key_heads, self.lanes = key_heads, lanes

        def linear(inner: int, cols: int) -> nn.Linear:
            return nn.Linear(inner, cols, bias=False, dtype=kind)

        self.first_norm = nn.RMSNorm(width, eps=1e-6, dtype=kind)
        self.qkv = linear(width, width + 2 * key_heads * lanes)
        self.out = linear(width, width)
        self.second_norm = nn.RMSNorm(width, eps=1e-6, dtype=kind)
        self.gate_up = linear(width, 2 * middle)
        self.down = linear(middle, width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        rates = 10000.0 ** (-torch.arange(0, lanes, 2) / lanes)
        angles = torch.arange(length + 1).unsqueeze(1) * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def _rotate(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos[position].unsqueeze(1), self.sin[position].unsqueeze(1)
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width, few = x.shape[1], self.key_heads * self.lanes
        q, k, v = self.qkv(self.first_norm(x)).split([width, few, few], dim=-1)
        q = self._rotate(q.unflatten(1, (-1, self.lanes)), lengths)
        k = self._rotate(k.unflatten(1, (-1, self.lanes)), lengths)
        v = v.unflatten(1, (-1, self.lanes)).contiguous()
        place = torch.arange(keys.shape[2] + 1, device=x.device)
        # The new token stands last, whatever the sequence's length.
        mask = (place < lengths.unsqueeze(1)) | (place == keys.shape[2])
        attended = F.scaled_dot_product_attention(
            q.unsqueeze(2),
            torch.cat([keys, k.unsqueeze(2)], dim=2),
            torch.cat([values, v.unsqueeze(2)], dim=2),
            attn_mask=mask[:, None, None],
            enable_gqa=True,
        )
        x = x + self.out(attended.flatten(1))
        gate, up = self.gate_up(self.second_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up), k, v


def get_inputs(
    batch: int = 2,
    length: int = 300,
    key_heads: int = 2,
    group: int = 2,
    lanes: int = 64,
    dtype: str = "float32",
) -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    cache = (batch, key_heads, length, lanes)
    return [
        torch.randn(batch, key_heads * group * lanes, dtype=kind),
        torch.randn(cache, dtype=kind),
        torch.randn(cache, dtype=kind),
        torch.randint(1, length + 1, (batch,)),
    ]


def get_init_inputs(
    length: int = 300,
    key_heads: int = 2,
    group: int = 2,
    lanes: int = 64,
    middle: int = 672,
    dtype: str = "float32",
) -> list[int | str]:
    return [length, key_heads, group, lanes, middle, dtype]
