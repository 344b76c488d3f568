"""RMSNorm of each query and key head, then rotary embedding, out of a packed projection.

    q = rotate(rms_norm(q) * wq, position), k = rotate(rms_norm(k) * wk, position), v as it is; halves of a head are rotated

The step between projection and attention in Qwen 3, Gemma 3, OLMo 2 and others.

Where time is lost: heads are short (64 to 256 lanes) and many; eager slices the packed tensor into copies, reduces,
scales, splits into halves, multiplies and concatenates, about fifteen kernels. One warp per head does all of it in
registers.

Bytes: 8 per element at float32. Source: Henry et al., "Query-Key Normalization for Transformers", arXiv 2010.04245; Su
et al., "RoFormer", arXiv 2104.09864.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "tokens": Dim(1, 4096, default=128, gpu=4096),
    "query_heads": Dim(1, 32, default=8, gpu=32),
    "key_heads": Dim(1, 8, default=2, gpu=8),
    "lanes": Dim(8, 256, multiple_of=8, default=128),
    "dtype": Choice("float32", "bfloat16"),
}
POSITIONS = 4096


class Model(nn.Module):
    def __init__(self, query_heads: int, key_heads: int, lanes: int, dtype: str):
        super().__init__()
        self.split = [query_heads, key_heads, key_heads]
        self.query_weight = nn.Parameter(torch.ones(lanes, dtype=getattr(torch, dtype)))
        self.key_weight = nn.Parameter(torch.ones(lanes, dtype=getattr(torch, dtype)))
        rates = 10000.0 ** (-torch.arange(0, lanes, 2) / lanes)
        angles = torch.arange(POSITIONS).unsqueeze(1) * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, packed: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lanes = self.query_weight.shape[0]
        q, k, v = packed.unflatten(-1, (-1, lanes)).split(self.split, dim=1)
        q = F.rms_norm(q, (lanes,), self.query_weight, 1e-6)
        k = F.rms_norm(k, (lanes,), self.key_weight, 1e-6)
        return (
            self._rotate(q, position),
            self._rotate(k, position),
            v.clone(memory_format=torch.contiguous_format),
        )

    def _rotate(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos[position].unsqueeze(1), self.sin[position].unsqueeze(1)
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def get_inputs(
    tokens: int = 128, query_heads: int = 8, key_heads: int = 2, lanes: int = 128, dtype: str = "float32"
) -> list[torch.Tensor]:
    packed = torch.randn(tokens, (query_heads + 2 * key_heads) * lanes, dtype=getattr(torch, dtype))
    return [packed, torch.randint(0, POSITIONS, (tokens,))]


def get_init_inputs(
    query_heads: int = 8, key_heads: int = 2, lanes: int = 128, dtype: str = "float32"
) -> list[int | str]:
    return [query_heads, key_heads, lanes, dtype]
