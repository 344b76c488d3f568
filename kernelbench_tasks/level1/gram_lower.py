"""Lower triangle of a Gram matrix with a shifted diagonal, packed row by row.

    g = a.T @ a / rows + shift * I,   y = the elements g[i, j] with j <= i, one row after the other

Normal equations, covariance estimates, second-order optimizers (K-FAC, Shampoo), kernel methods: what a Cholesky
factorization reads.

Where time is lost: the product computes both triangles, twice the work, and the packed half is gathered from memory
afterwards with an index of 16 bytes per element. A kernel that works on the tiles of one triangle alone and stores
packed does half the operations and moves a third.

Operations: rows * cols^2. Bytes at float32: 4 * rows * cols + 2 * cols^2. Source: BLAS documentation of SYRK and of
packed storage (Dongarra et al., 1990); Martens, Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate
Curvature", arXiv 1503.05671.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 8192, default=512, gpu=8192), "cols": Dim(1, 1024, default=256, gpu=1024)}


class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("index", torch.tril_indices(cols, cols), persistent=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        gram = a.t() @ a / a.shape[0]
        gram.diagonal().add_(self.shift)
        return gram[self.index[0], self.index[1]]


def get_inputs(rows: int = 512, cols: int = 256) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs(cols: int = 256) -> list[int]:
    return [cols]
