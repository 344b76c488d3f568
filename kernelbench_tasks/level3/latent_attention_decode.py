"""Multi-head latent attention for one new token per sequence, over a compressed cache.

    s[b, h, l] = ((q[b, h] @ expand_key[h]) . latent[b, l] + qr[b, h] . kr[b, l]) / sqrt(lanes + rope)   for l < length[b]
    y[b] = concatenation over h of (softmax(s[b, h]) @ latent[b]) @ expand_value[h], times out

The attention of DeepSeek models: all heads share one latent vector per token, from which keys and values are expanded.

Where time is lost: all heads read the same cache, so it is worth reading once for all of them, as a product of
matrices; eager reads it for scores and again for the sums, and stores scores, mask and weights in between. Long
sequences must be split for small batches.

Bytes: 4 * (latent + rope) per cached token at float32. Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section
2.1.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=16),
    "length": Dim(1, 4096, default=300, gpu=4096),
    "heads": Dim(1, 32, default=8, gpu=32),
    "lanes": Dim(8, 128, multiple_of=8, default=32, gpu=128),
    "latent": Dim(16, 512, multiple_of=16, default=128, gpu=512),
    "dtype": Choice("float32", "bfloat16"),
}
ROPE = 16


class Model(nn.Module):
    def __init__(self, heads: int, lanes: int, latent: int, dtype: str):
        super().__init__()
        kind = getattr(torch, dtype)
        self.expand_key = nn.Parameter(torch.randn(heads, lanes, latent, dtype=kind) * latent**-0.5)
        self.expand_value = nn.Parameter(torch.randn(heads, latent, lanes, dtype=kind) * latent**-0.5)
        self.out = nn.Parameter(
            torch.randn(heads * lanes, heads * lanes, dtype=kind) * (heads * lanes) ** -0.5
        )
        self.scale = (lanes + ROPE) ** -0.5

    def forward(
        self, query: torch.Tensor, latent: torch.Tensor, rotated_key: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        plain, rotated = query.split([self.expand_key.shape[1], ROPE], dim=-1)
        # The expansion of keys is applied to the query, of which there is only one.
        absorbed = torch.einsum("bhd,hdr->bhr", plain, self.expand_key)
        scores = (absorbed @ latent.transpose(1, 2) + rotated @ rotated_key.transpose(1, 2)).float()
        beyond = torch.arange(latent.shape[1], device=latent.device) >= lengths.unsqueeze(1)
        scores = (scores * self.scale).masked_fill(beyond.unsqueeze(1), -torch.inf)
        mixed = torch.softmax(scores, dim=-1).to(latent.dtype) @ latent
        return torch.einsum("bhr,hrd->bhd", mixed, self.expand_value).flatten(1) @ self.out


def get_inputs(
    batch: int = 2,
    length: int = 300,
    heads: int = 8,
    lanes: int = 32,
    latent: int = 128,
    dtype: str = "float32",
) -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    return [
        2.0 * torch.randn(batch, heads, lanes + ROPE, dtype=kind),
        torch.randn(batch, length, latent, dtype=kind),
        torch.randn(batch, length, ROPE, dtype=kind),
        torch.randint(1, length + 1, (batch,)),
    ]


def get_init_inputs(
    heads: int = 8, lanes: int = 32, latent: int = 128, dtype: str = "float32"
) -> list[int | str]:
    return [heads, lanes, latent, dtype]
