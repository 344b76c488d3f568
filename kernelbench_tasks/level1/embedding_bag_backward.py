"""Weighted sums of rows of an embedding table, forward and backward.

    y[b] = sum over i in bag b of weight[i] * table[id[i]]
    dtable[v] = sum over i with id[i] = v of weight[i] * dy[bag of i],   dweight[i] = table[id[i]] . dy[bag of i]

Training of recommender models and of text classifiers.

Where time is lost: the same few ids occur again and again, so atomic additions into the gradient queue up at a few
rows, and the rest of the gradient, nearly all of it, is zeros that must be written. Sorting by id, or aggregating in
shared memory what repeats, trades traffic for order.

Bytes at float32: 4 * (3 * ids + table rows) * width. Source: Naumov et al., "Deep Learning Recommendation Model for
Personalization and Recommendation Systems", arXiv 1906.00091; FBGEMM documentation on table batched embeddings.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "bags": Dim(1, 8192, default=256, gpu=8192),
    "mean_ids": Dim(1, 32, default=8, gpu=32),
    "entries": Dim(2, 262144, default=1000, gpu=262144),
    "width": Dim(1, 256, default=48, gpu=128),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, entries: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, width))

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(
            ids, self.table, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
        )


def get_inputs(bags: int = 256, mean_ids: int = 8, entries: int = 1000) -> list[torch.Tensor]:
    count = bags * mean_ids
    inner = torch.randint(0, count + 1, (bags - 1,)).sort().values
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.full((1,), count)])
    # Few entries are asked for often.
    ids = (torch.rand(count).pow(2) * entries).long().clamp(max=entries - 1)
    return [ids, offsets, torch.randn(count)]


def get_init_inputs(entries: int = 1000, width: int = 48) -> list[int]:
    return [entries, width]
