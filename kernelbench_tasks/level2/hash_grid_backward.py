"""Multiresolution hash-grid encoding of points in the plane and a linear layer on it, forward and backward.

    e[n, l] = bilinear interpolation of table[l, hash(corner) mod T] over the four corners of the cell that holds x[n]
    y[n] = e[n] @ project.T

Fitting images, height maps and signed distances: the gradient with respect to the table is what training waits for.

Where time is lost: backward scatters four contributions per point and level into the table, by atomics in memory that
is zeroed first; coarse levels have few entries, so thousands of points meet there. Sorting points by cell, or summing
coarse levels in shared memory, and recomputing indices in place of saving them.

Bytes at float32: 8 per corner gathered and 8 per corner added. Source: Müller, Evans, Schied, Keller, "Instant Neural
Graphics Primitives with a Multiresolution Hash Encoding", arXiv 2201.05989, section 4.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "points": Dim(1, 262144, default=2048, gpu=262144),
    "levels": Dim(1, 16, default=6, gpu=16),
    "log_table": Dim(4, 19, default=12, gpu=19),
    "outputs": Dim(1, 64, default=16),
}
DIRECTION = "forward_backward"
FEATURES, BASE, GROWTH, PRIME = 2, 6, 1.4, 2654435761


class Model(nn.Module):
    def __init__(self, levels: int, log_table: int, outputs: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(levels, 2**log_table, FEATURES))
        self.project = nn.Parameter(torch.randn(outputs, levels * FEATURES) * (levels * FEATURES) ** -0.5)
        self.register_buffer(
            "resolution", torch.tensor([int(BASE * GROWTH**level) for level in range(levels)])
        )
        self.register_buffer("corners", torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels, size, _ = self.table.shape
        scaled = x.unsqueeze(1) * self.resolution.unsqueeze(-1)  # points, levels, 2
        cell = scaled.detach().floor()
        inside = (scaled - cell).unsqueeze(2)
        corner = cell.long().unsqueeze(2) + self.corners
        index = (corner[..., 0] ^ (corner[..., 1] * PRIME)) % size
        weight = torch.where(self.corners.bool(), inside, 1 - inside).prod(-1)
        level = torch.arange(levels, device=x.device).view(1, levels, 1)
        features = self.table[level, index]
        return F.linear((weight.unsqueeze(-1) * features).sum(2).flatten(1), self.project)


def get_inputs(points: int = 2048) -> list[torch.Tensor]:
    return [torch.rand(points, 2)]


def get_init_inputs(levels: int = 6, log_table: int = 12, outputs: int = 16) -> list[int]:
    return [levels, log_table, outputs]
