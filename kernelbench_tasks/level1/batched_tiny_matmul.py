"""A product of very many very small matrices.

    c[n] = a[n] @ b[n]

Element matrices of finite elements, Jacobians of robots and of camera poses, per-atom blocks in chemistry, Kalman
filters.

Where time is lost: a library's batched product works in tiles of 16 to 64, so for a 5 x 7 x 3 product almost all of
each tile is padding. It is a matter of bandwidth: a thread or a few lanes per product, loads in vectors across
products.

Operations: 2 * batch * rows * inner * cols. Bytes at float32: 4 * batch * (rows * inner + inner * cols + rows * cols).
Source: Dongarra et al., "The Design and Performance of Batched BLAS on Modern High-Performance Computing Systems",
2017.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 524288, default=16384, gpu=524288),
    "rows": Dim(1, 16, default=5),
    "inner": Dim(1, 16, default=7),
    "cols": Dim(1, 16, default=3),
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs(batch: int = 16384, rows: int = 5, inner: int = 7, cols: int = 3) -> list[torch.Tensor]:
    return [torch.randn(batch, rows, inner), torch.randn(batch, inner, cols)]


def get_init_inputs() -> list[int]:
    return []
