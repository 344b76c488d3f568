"""A matrix of its own for each group of rows; groups have different sizes.

    y[i] = x[i] @ weight[g].T for offset[g] <= i < offset[g + 1]

Experts of a mixture, node types of a heterogeneous graph, tenants with their own heads.

Where time is lost: a loop of products starts a kernel per group, has to know the sizes on the host, and leaves the
machine idle at the small groups; padding all to the largest wastes most of the work. One launch over all tiles of all
groups, whose number only the device knows.

Operations: 2 * rows * inner * cols. Bytes at float32: 4 * (rows * inner + groups * inner * cols + rows * cols). Source:
Gale et al., "MegaBlocks", arXiv 2211.15841; CUTLASS documentation on grouped GEMM.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 8192, default=512, gpu=8192),
    "groups": Dim(1, 64, default=8, gpu=16),
    "inner": Dim(8, 1024, default=128, gpu=1024),
    "cols": Dim(8, 1024, default=160, gpu=1024),
}
PRECISION = "tf32"


class Model(nn.Module):
    def __init__(self, groups: int, inner: int, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, cols, inner) * inner**-0.5)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        # torch's own grouped product takes 16-bit numbers and aligned sizes.
        ends = offsets.tolist()
        parts = [
            F.linear(x[start:end], weight)
            for start, end, weight in zip(ends[:-1], ends[1:], self.weight, strict=True)
        ]
        return torch.cat(parts)


def get_inputs(rows: int = 512, groups: int = 8, inner: int = 128) -> list[torch.Tensor]:
    weight = torch.rand(groups).clamp(min=1e-3).pow(-0.8)
    ends = (weight.cumsum(0) / weight.sum() * rows).round().long()
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1], torch.full((1,), rows)])
    return [torch.randn(rows, inner), offsets]


def get_init_inputs(groups: int = 8, inner: int = 128, cols: int = 160) -> list[int]:
    return [groups, inner, cols]
