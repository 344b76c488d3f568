"""Recommender: rows of many tables and a projection of dense features, all pairwise products, and a small network.

    v[0] = relu(dense @ bottom.T + b),   v[i] = table[i - 1, id[:, i - 1]],   p = v[i] . v[j] for j < i
    y = relu((v[0], p) @ hidden.T + c) @ top.T + d

DLRM, the shape of many models that choose what people are shown.

Where time is lost: a gather per table, a stack, a batched product of 27 x 27 of which one half is read through an
index, a concatenation, and products with few columns: about twenty kernels at any batch size. All vectors of a sample
fit shared memory or registers; the pairs can be formed in place and go straight into the hidden layer.

Bytes at float32: 4 * batch * tables * width gathered. Source: Naumov et al., "Deep Learning Recommendation Model for
Personalization and Recommendation Systems", arXiv 1906.00091.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 8192, default=256, gpu=8192),
    "tables": Dim(1, 40, default=26),
    "entries": Dim(2, 65536, default=1000, gpu=65536),
    "width": Dim(4, 128, default=16, gpu=64),
}
DENSE, HIDDEN = 13, 96


class Model(nn.Module):
    def __init__(self, tables: int, entries: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(tables, entries, width) * width**-0.25)
        self.bottom = nn.Linear(DENSE, width)
        pairs = tables * (tables + 1) // 2
        self.hidden = nn.Linear(width + pairs, HIDDEN)
        self.top = nn.Linear(HIDDEN, 1)
        for linear in (self.bottom, self.hidden, self.top):
            nn.init.normal_(linear.weight, std=(2 / linear.in_features) ** 0.5)
        self.register_buffer("pair", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.bottom(dense))
        number = torch.arange(self.table.shape[0], device=ids.device)
        vectors = torch.cat([first.unsqueeze(1), self.table[number, ids]], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pair[0], self.pair[1]]
        return self.top(F.relu(self.hidden(torch.cat([first, products], dim=1))))


def get_inputs(batch: int = 256, tables: int = 26, entries: int = 1000) -> list[torch.Tensor]:
    ids = (torch.rand(batch, tables).pow(2) * entries).long().clamp(max=entries - 1)
    return [torch.randn(batch, DENSE), ids]


def get_init_inputs(tables: int = 26, entries: int = 1000, width: int = 16) -> list[int]:
    return [tables, entries, width]
