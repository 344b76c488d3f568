"""Matrix product of irregular sizes with bias, GELU and a gain per column.

    y = gelu(x @ weight.T + bias) * gain

MLPs whose sizes nobody chose: pruned networks, physics surrogates, scientific features, vocabulary slices.

Where time is lost: with an odd inner size no row starts at an aligned address, so libraries fall back to kernels with
narrow loads; padding costs a copy. Activation and gain are further passes. A kernel that aligns while it stages tiles
pays neither.

Operations: 2 * rows * inner * cols. Bytes at float32: 4 * (rows * inner + inner * cols + rows * cols). Source: cuBLAS
documentation, section on alignment of matrices; Hendrycks, Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 4096, default=127, gpu=4096),
    "inner": Dim(1, 4096, default=509, gpu=2048),
    "cols": Dim(1, 4096, default=251, gpu=2048),
    "dtype": Choice("float32", "bfloat16"),
}
PRECISION = "tf32"


class Model(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind = getattr(torch, dtype)
        self.weight = nn.Parameter(torch.randn(cols, inner, dtype=kind) * inner**-0.5)
        self.bias = nn.Parameter(torch.zeros(cols, dtype=kind))
        self.gain = nn.Parameter(torch.ones(cols, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias)) * self.gain


def get_inputs(rows: int = 127, inner: int = 509, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 509, cols: int = 251, dtype: str = "float32") -> list[int | str]:
    return [inner, cols, dtype]
