"""Bias addition followed by GELU in its tanh approximation.

    v = x + bias
    y = v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v ** 3)))

The middle of a transformer's MLP whose first projection leaves its bias to the activation.

Where time is lost: two tensors moved and one tanh an element. Eager writes x + bias to memory and reads it back. The tanh
is the expensive part: a library call per element, or per vector, keeps the operation from the speed of memory.

Bytes: 8 per element at float32, plus 4 per column. Source: Hendrycks, Gimpel, "Gaussian Error Linear Units",
arXiv 1606.08415.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512, gpu=8192),
    "cols": Dim(8, 8192, default=1024, gpu=4096),
    "dtype": Choice("float32"),
}


class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + self.bias, approximate="tanh")


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs(cols: int = 1024) -> list[int]:
    return [cols]
