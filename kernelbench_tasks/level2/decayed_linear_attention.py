"""Linear attention with a decay per head.

    y[t] = sum over s <= t of decay[h]^(t - s) * (q[t] . k[s]) * v[s] / sqrt(d * sum over s <= t of decay^(t - s))

Retention, lightning attention, Mamba-2 in its attention form.

Where time is lost: written as a product of matrices under a mask of decays, as here, work and memory grow with the
square of the length; step by step it is a launch per position. In chunks it is both: products inside of a chunk, a
state of d x d between chunks, and nothing of the size of the square is ever stored.

Operations: about 4 * length * lanes * (chunk + lanes) per head when chunked. Bytes at float32: 16 per position and
lane. Source: Sun et al., "Retentive Network", arXiv 2307.08621; Dao, Gu, "Transformers are SSMs", arXiv 2405.21060.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 4, default=2, gpu=4),
    "length": Dim(1, 2048, default=500, gpu=2048),
    "heads": Dim(1, 8, default=4, gpu=8),
    "lanes": Dim(8, 128, multiple_of=8, default=64, gpu=128),
}


class Model(nn.Module):
    def __init__(self, heads: int, length: int):
        super().__init__()
        decay = 1.0 - 2.0 ** (-3.0 - torch.arange(heads) % 5)
        place = torch.arange(length)
        age = (place.unsqueeze(1) - place).clamp(min=0)
        mask = decay.view(-1, 1, 1) ** age * (place.unsqueeze(1) >= place)
        self.register_buffer("mask", mask / mask.sum(-1, keepdim=True).sqrt())

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        return (scores * self.mask) @ value


def get_inputs(batch: int = 2, length: int = 500, heads: int = 4, lanes: int = 64) -> list[torch.Tensor]:
    shape = (batch, heads, length, lanes)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs(heads: int = 4, length: int = 500) -> list[int]:
    return [heads, length]
