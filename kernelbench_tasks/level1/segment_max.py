"""Maximum of the rows of each segment, and which row it came from, per column.

    y[s, d] = max over rows i of segment s of x[i, d],   index[s, d] = the first such i; 0 and -1 where s is empty

Pooling of point clouds (PointNet), of graphs and of tokens into words; the index is what the backward pass needs.

Where time is lost: a scatter with a maximum has no index, so a second scatter looks for it, over the whole input again,
with atomics on both. Rows of a segment lie together: a block that walks over them keeps both in registers.

Bytes: 4 per element and 12 per result at float32. Source: Fey, Lenssen, "Fast Graph Representation Learning with
PyTorch Geometric", arXiv 1903.02428; Qi et al., "PointNet", arXiv 1612.00593.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "segments": Dim(1, 4096, default=256, gpu=4096),
    "mean_rows": Dim(1, 64, default=16, gpu=64),
    "channels": Dim(1, 512, default=64, gpu=128),
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, channels = x.shape
        place = torch.arange(rows, device=x.device)
        segment = torch.searchsorted(offsets, place, right=True) - 1
        where = segment.unsqueeze(1).expand_as(x)
        shape = (offsets.shape[0] - 1, channels)
        largest = x.new_full(shape, -torch.inf).scatter_reduce(0, where, x, "amax")
        candidate = torch.where(x == largest[segment], place.unsqueeze(1), rows)
        first = torch.full(shape, rows, device=x.device).scatter_reduce(0, where, candidate, "amin")
        empty = first == rows
        return largest.masked_fill(empty, 0.0), first.masked_fill(empty, -1)


def get_inputs(segments: int = 256, mean_rows: int = 16, channels: int = 64) -> list[torch.Tensor]:
    rows = segments * mean_rows
    inner = torch.randint(0, rows + 1, (segments - 1,)).sort().values
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.full((1,), rows)])
    return [torch.randn(rows, channels), offsets]


def get_init_inputs() -> list[int]:
    return []
