"""SwiGLU: the gate of a transformer's MLP.

    y = silu(gate) * up,   silu(v) = v / (1 + exp(-v))

Between the two projections of the MLP in most recent language models.

Where time is lost: elementwise, three tensors moved, one exponential an element. Eager makes two kernels and a temporary,
five transfers in place of three. A compiler gets close to memory speed when the tensors are large; below a few thousand
elements the call decides, and its exponential is called as a library function where a short polynomial will do.

Bytes: 12 per element at float32. Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
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
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    return [torch.randn(rows, cols, dtype=kind), torch.randn(rows, cols, dtype=kind)]


def get_init_inputs() -> list[int]:
    return []
