"""Softmax within segments of different lengths, stored one after the other.

    y[i] = exp(x[i] - m[s]) / sum over i' in s of exp(x[i'] - m[s]),   s the segment of i, m[s] its maximum

Attention over documents of a packed batch, graph attention, pooling of ragged features, listwise ranking.

Where time is lost: composed of scatters and gathers, each of maximum, exponential, sum and division passes over all
values and an index of 8 bytes for each. Segments are contiguous, so a warp or a block can own one, or share a long one:
lengths follow Zipf's law, and both the shortest and the longest must be served well.

Bytes: 8 per value at float32, plus 8 per segment. Source: Fey, Lenssen, "Fast Graph Representation Learning with
PyTorch Geometric", arXiv 1903.02428 (softmax over an index).
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "values": Dim(1, 16777216, default=65536, gpu=16777216),
    "segments": Dim(1, 16384, default=512, gpu=16384),
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[0], device=x.device)
        segment = torch.searchsorted(offsets, place, right=True) - 1
        count = offsets.shape[0] - 1
        largest = x.new_full((count,), -torch.inf).scatter_reduce(0, segment, x, "amax")
        exponential = torch.exp(x - largest[segment])
        total = x.new_zeros(count).index_add(0, segment, exponential)
        return exponential / total[segment]


def get_inputs(values: int = 65536, segments: int = 512) -> list[torch.Tensor]:
    # Heavy-tailed lengths; some segments are empty.
    weight = torch.rand(segments).clamp(min=1e-3).pow(-0.8)
    ends = (weight.cumsum(0) / weight.sum() * values).round().long()
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1], torch.full((1,), values)])
    return [2.0 * torch.randn(values), offsets]


def get_init_inputs() -> list[int]:
    return []
