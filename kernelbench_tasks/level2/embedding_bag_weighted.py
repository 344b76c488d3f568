"""Weighted sums of rows of an embedding table, for bags of different sizes, with a projection of dense features.

    y[b] = sum over i in bag b of weight[i] * table[id[i]] + dense[b] @ project.T

The bottom of recommender models: each sample has a handful of clicks, words or ads, and a few plain numbers.

Where time is lost: reading rows at random places is all there is, and a row is shorter than what keeps memory busy
unless many are in flight. The library gives a block to a bag, whatever its size; then comes a thin product, and another
pass for the addition.

Bytes at float32: 4 * ids * width + 12 per id + 4 * bags * width. Source: Naumov et al., "Deep Learning Recommendation
Model for Personalization and Recommendation Systems", arXiv 1906.00091; FBGEMM documentation on table batched
embeddings.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "bags": Dim(1, 16384, default=512, gpu=16384),
    "mean_ids": Dim(1, 32, default=10, gpu=32),
    "entries": Dim(2, 131072, default=10000, gpu=131072),
    "width": Dim(1, 256, default=64, gpu=128),
}
DENSE = 13


class Model(nn.Module):
    def __init__(self, entries: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, width))
        self.project = nn.Linear(DENSE, width, bias=False)

    def forward(
        self, ids: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        bags = F.embedding_bag(
            ids, self.table, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
        )
        return bags + self.project(dense)


def get_inputs(bags: int = 512, mean_ids: int = 10, entries: int = 10000) -> list[torch.Tensor]:
    count = bags * mean_ids
    inner = torch.randint(0, count + 1, (bags - 1,)).sort().values
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.full((1,), count)])
    # Few entries are asked for often.
    ids = (torch.rand(count).pow(3) * entries).long().clamp(max=entries - 1)
    return [ids, offsets, torch.randn(count), torch.randn(bags, DENSE)]


def get_init_inputs(entries: int = 10000, width: int = 64) -> list[int]:
    return [entries, width]
