"""Gated GELU with biases over a packed projection, forward and backward.

    y = gelu(a + ba) * (b + bb),   (a, b) = the two halves of a row of packed,   gelu in its tanh approximation

The middle of the MLP of T5, Gemma and diffusion transformers, in training.

Where time is lost: the derivative of GELU is a dozen elementwise steps over saved tensors, the halves are put together
by a copy, and the gradients of the biases read the result once more. Recomputing the gate from the input costs less
than reading what was saved, and the sums down the columns can be formed on the way.

Bytes at float32: 12 per output forward, 20 backward. Source: Shazeer, "GLU Variants Improve Transformer", arXiv
2002.05202.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 8192, default=256, gpu=8192),
    "cols": Dim(1, 8192, default=1000, gpu=4096),
    "dtype": Choice("float32", "bfloat16"),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, cols: int, dtype: str):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2 * cols, dtype=getattr(torch, dtype)))

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        gate, up = (packed + self.bias).chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up


def get_inputs(rows: int = 256, cols: int = 1000, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, 2 * cols, dtype=getattr(torch, dtype))]


def get_init_inputs(cols: int = 1000, dtype: str = "float32") -> list[int | str]:
    return [cols, dtype]
