"""Frobenius norm of each matrix of a batch after its rank-one approximation is taken off.

    y[b] = sqrt(sum over i, j of (a[b, i, j] - u[b, i] * v[b, j])^2 / (rows * cols))

The stopping test of power iterations and of low-rank compression (of gradients, of adapters, of tensors by deflation).

Where time is lost: eager writes the outer product, the difference and its square before it sums, seven transfers of the
matrix in place of one. The expanded formula |a|^2 - 2 u'av + |u|^2|v|^2 would cancel when the approximation is good.

Bytes: 4 per element of a at float32. Source: Golub, Van Loan, "Matrix Computations", section on the singular value
decomposition; Vogels, Karimireddy, Jaggi, "PowerSGD", arXiv 1905.13727.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 64, default=8, gpu=64),
    "rows": Dim(1, 1024, default=384, gpu=1024),
    "cols": Dim(2, 2048, default=512, gpu=1024),
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        residual = a - u.unsqueeze(2) * v.unsqueeze(1)
        return residual.square().mean(dim=(1, 2)).sqrt()


def get_inputs(batch: int = 8, rows: int = 384, cols: int = 512) -> list[torch.Tensor]:
    return [torch.randn(batch, rows, cols), torch.randn(batch, rows), torch.randn(batch, cols)]


def get_init_inputs() -> list[int]:
    return []
