"""LayerNorm, forward and backward.

    y = (x - mean) * r * weight + bias,   r = 1 / sqrt(var + eps),   u = dy * weight,   n = (x - mean) * r
    dx = r * (u - mean(u) - n * mean(u * n)),   dweight = sum over rows of dy * n,   dbias = sum over rows of dy

Twice per layer of most transformers, in training.

Where time is lost: dx is a reduction along rows, the two gradients of the parameters are reductions down the columns of
the same tensors. Libraries run two kernels for the backward pass and read x and dy twice; few columns leave the second
one starved. Partial sums per block of rows, added up in a small second step, need a single reading.

Bytes at float32: 8 per element forward, 12 backward. Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv
1607.06450; Triton documentation, tutorial on layer normalization.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512, gpu=8192),
    "cols": Dim(4, 8192, default=768, gpu=4096),
    "dtype": Choice("float32", "bfloat16"),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, cols: int, dtype: str):
        super().__init__()
        self.norm = nn.LayerNorm(cols, dtype=getattr(torch, dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs(rows: int = 512, cols: int = 768, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs(cols: int = 768, dtype: str = "float32") -> list[int | str]:
    return [cols, dtype]
