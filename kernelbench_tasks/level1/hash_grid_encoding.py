"""Multiresolution hash-grid encoding of points in the unit cube.

    for each level l: y[n, l] = trilinear interpolation of table[l, hash(corner) mod T] over the eight corners of the cell of
    resolution floor(base * growth^l) that holds x[n]

The trainable coordinate encoding of neural graphics: radiance fields, signed distance functions, image compression.

Where time is lost: eight gathers per point and level of two numbers each, at addresses without order; eager writes the
corner indices in 64 bits, hashes, weights and gathered features to memory, forty times more than the result. Fused,
coarse levels fit a cache and fine ones are bound by the latency of memory, so that the order of levels and points
matters.

Bytes: 12 per point, 8 per corner gathered, 8 per level written at float32. Source: Müller, Evans, Schied, Keller,
"Instant Neural Graphics Primitives with a Multiresolution Hash Encoding", arXiv 2201.05989, section 3.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "points": Dim(1, 524288, default=4096, gpu=524288),
    "levels": Dim(1, 16, default=8, gpu=16),
    "log_table": Dim(4, 19, default=14, gpu=19),
}
FEATURES, BASE, GROWTH = 2, 8, 1.38
PRIMES = (1, 2654435761, 805459861)


class Model(nn.Module):
    def __init__(self, levels: int, log_table: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(levels, 2**log_table, FEATURES))
        self.register_buffer(
            "resolution", torch.tensor([int(BASE * GROWTH**level) for level in range(levels)])
        )
        corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)])
        self.register_buffer("corners", corners)
        self.register_buffer("primes", torch.tensor(PRIMES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels, size, _ = self.table.shape
        scaled = x.unsqueeze(1) * self.resolution.unsqueeze(-1)  # points, levels, 3
        cell = scaled.floor()
        inside = (scaled - cell).unsqueeze(2)
        corner = cell.long().unsqueeze(2) + self.corners  # points, levels, 8, 3
        hashed = corner * self.primes
        index = (hashed[..., 0] ^ hashed[..., 1] ^ hashed[..., 2]) % size
        weight = torch.where(self.corners.bool(), inside, 1 - inside).prod(-1)
        level = torch.arange(levels, device=x.device).view(1, levels, 1)
        features = self.table[level, index]
        return (weight.unsqueeze(-1) * features).sum(2).flatten(1)


def get_inputs(points: int = 4096) -> list[torch.Tensor]:
    return [torch.rand(points, 3)]


def get_init_inputs(levels: int = 8, log_table: int = 14) -> list[int]:
    return [levels, log_table]
