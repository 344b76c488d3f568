"""Distances of each point to its k nearest among others, in order.

    y[i] = the k smallest of sqrt(sum over d of (x[i, d] - z[j, d])^2)

Chamfer losses and normals of point clouds, outlier scores, neighbor search in low dimensions.

Small by nature: points take a few megabytes. What is large, the distances between them, need never be stored.

Where time is lost: the matrix of all distances is written, and a general selection reads it again, for a few numbers
per row. As a product of matrices, distances of near points would cancel. A block that keeps its rows' best k in
registers while the other points stream by stores nothing but the answer.

Operations: 3 * points * others * dims. Bytes at float32: 4 * (points + others) * dims + 4 * points * k. Source:
Johnson, Douze, Jégou, "Billion-scale similarity search with GPUs", arXiv 1702.08734.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "points": Dim(1, 16384, default=256, gpu=16384),
    "others": Dim(16, 16384, default=512, gpu=16384),
    "dims": Dim(1, 32, default=3, gpu=32),
    "k": Dim(1, 16, default=8),
}


class Model(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        distance = torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist")
        return distance.topk(self.k, dim=-1, largest=False).values


def get_inputs(points: int = 256, others: int = 512, dims: int = 3) -> list[torch.Tensor]:
    return [torch.randn(points, dims), torch.randn(others, dims)]


def get_init_inputs(k: int = 8) -> list[int]:
    return [k]
