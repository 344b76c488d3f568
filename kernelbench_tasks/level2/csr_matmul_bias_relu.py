"""Sparse times dense with bias and ReLU; rows of the sparse matrix have very different lengths.

    y[i] = relu(bias + sum over e in row i of value[e] * x[column[e]])

Graph convolutions, recommender features, finite elements on irregular meshes.

Where time is lost: eager gathers a row of x for every entry into memory, scales it there, and adds it up by atomics:
sixteen bytes moved for each number added. Libraries multiply by sparse matrices but fuse nothing, and split the work by
rows, of which a few are a thousand times longer than the rest.

Bytes at float32: 4 * entries * width read from a cache, 12 per entry, 4 * rows * width. Source: Yang, Buluç, Owens,
"Design Principles for Sparse Matrix Multiplication on the GPU", arXiv 1803.08601; Merrill, Garland, "Merge-Based
Parallel Sparse Matrix-Vector Multiplication", 2016.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 65536, default=512, gpu=65536),
    "mean_entries": Dim(1, 32, default=8, gpu=16),
    "columns": Dim(1, 65536, default=400, gpu=65536),
    "width": Dim(1, 256, default=48, gpu=256),
}


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, offsets: torch.Tensor, column: torch.Tensor, value: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        place = torch.arange(column.shape[0], device=x.device)
        row = torch.searchsorted(offsets, place, right=True) - 1
        total = self.bias.expand(offsets.shape[0] - 1, -1)
        return torch.relu(total.index_add(0, row, value.unsqueeze(1) * x[column]))


def get_inputs(
    rows: int = 512, mean_entries: int = 8, columns: int = 400, width: int = 48
) -> list[torch.Tensor]:
    entries = rows * mean_entries
    weight = torch.rand(rows).clamp(min=1e-3).pow(-0.8)
    ends = (weight.cumsum(0) / weight.sum() * entries).round().long()
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1], torch.full((1,), entries)])
    return [
        offsets,
        torch.randint(0, columns, (entries,)),
        torch.randn(entries) * mean_entries**-0.5,
        torch.randn(columns, width),
    ]


def get_init_inputs(width: int = 48) -> list[int]:
    return [width]
