"""A radiance field: hash-grid encoding of positions, spherical harmonics of directions, and two tiny networks.

    e = trilinear interpolation in hashed tables of several resolutions;   f = relu(e @ a.T) @ b.T
    density = softplus(f[0]);   color = sigmoid(relu((f[1:], harmonics(direction)) @ c.T) @ d.T)

Rendering of scenes from photographs evaluates this at hundreds of points for each pixel.

Where time is lost: networks with layers of 64 are bound by memory when each layer is a kernel, and the encoding writes
forty times more than it reads. All weights fit the nearest memory of a block and all activations registers: a point
need be read and its four numbers written.

Operations: about 2 * points * 64 * (2 * levels + 16 + 25 + 3). Bytes at float32: 40 per point, and 64 per level
gathered. Source: Müller et al., "Instant Neural Graphics Primitives", arXiv 2201.05989; Müller et al., "Real-time
Neural Radiance Caching for Path Tracing", arXiv 2106.12372 (fully fused networks).
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "points": Dim(1, 262144, default=2048, gpu=262144),
    "levels": Dim(1, 16, default=8, gpu=16),
    "log_table": Dim(4, 19, default=12, gpu=19),
    "hidden": Dim(8, 64, multiple_of=8, default=64),
}
BASE, GROWTH, GEOMETRY = 8, 1.35, 16


class Model(nn.Module):
    def __init__(self, levels: int, log_table: int, hidden: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(levels, 2**log_table, 2))
        self.a = nn.Parameter(torch.randn(hidden, 2 * levels) * (2 / levels) ** 0.5)
        self.b = nn.Parameter(torch.randn(GEOMETRY, hidden) * (2 / hidden) ** 0.5)
        self.c = nn.Parameter(torch.randn(hidden, GEOMETRY - 1 + 9) * (2 / (GEOMETRY + 8)) ** 0.5)
        self.d = nn.Parameter(torch.randn(3, hidden) * (2 / hidden) ** 0.5)
        self.register_buffer(
            "resolution", torch.tensor([int(BASE * GROWTH**level) for level in range(levels)])
        )
        self.register_buffer("corners", torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)]))
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))

    def _encode(self, x: torch.Tensor) -> torch.Tensor:
        levels, size, _ = self.table.shape
        scaled = x.unsqueeze(1) * self.resolution.unsqueeze(-1)
        cell = scaled.floor()
        inside = (scaled - cell).unsqueeze(2)
        hashed = (cell.long().unsqueeze(2) + self.corners) * self.primes
        index = (hashed[..., 0] ^ hashed[..., 1] ^ hashed[..., 2]) % size
        weight = torch.where(self.corners.bool(), inside, 1 - inside).prod(-1)
        level = torch.arange(levels, device=x.device).view(1, levels, 1)
        return (weight.unsqueeze(-1) * self.table[level, index]).sum(2).flatten(1)

    def forward(self, position: torch.Tensor, direction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = F.linear(F.relu(F.linear(self._encode(position), self.a)), self.b)
        x, y, z = F.normalize(direction, dim=-1).unbind(-1)
        # Real spherical harmonics up to the second degree, without their constants, which the weights absorb.
        harmonics = [torch.ones_like(x), x, y, z, x * y, y * z, z * x, x * x - y * y, 3 * z * z - 1]
        color = torch.cat([features[:, 1:], torch.stack(harmonics, dim=-1)], dim=-1)
        color = torch.sigmoid(F.linear(F.relu(F.linear(color, self.c)), self.d))
        return F.softplus(features[:, 0]), color


def get_inputs(points: int = 2048) -> list[torch.Tensor]:
    return [torch.rand(points, 3), torch.randn(points, 3)]


def get_init_inputs(levels: int = 8, log_table: int = 12, hidden: int = 64) -> list[int]:
    return [levels, log_table, hidden]
