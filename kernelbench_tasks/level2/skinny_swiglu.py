"""Both projections of a gated MLP for a handful of tokens.

    y = silu(x @ gate.T) * (x @ up.T)

The widest step of decoding with one to thirty-two tokens in flight.

Where time is lost: all time goes into reading two matrices once. Two products in a row are two launches with a ramp
each, then two small kernels; at few rows a library's tiles are mostly padding. One launch that streams both matrices
side by side and splits the inner dimension over the machine reaches the speed of memory.

Bytes: 8 * inner * cols at float32. Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202; Osama et al.,
"Stream-K", arXiv 2301.03598.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 32, default=4, gpu=16),
    "inner": Dim(8, 4096, default=1024, gpu=4096),
    "cols": Dim(8, 14336, default=1536, gpu=14336),
    "dtype": Choice("float32", "bfloat16"),
}


class Model(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind = getattr(torch, dtype)
        self.gate = nn.Parameter(torch.randn(cols, inner, dtype=kind) * inner**-0.5)
        self.up = nn.Parameter(torch.randn(cols, inner, dtype=kind) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)


def get_inputs(rows: int = 4, inner: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 1024, cols: int = 1536, dtype: str = "float32") -> list[int | str]:
    return [inner, cols, dtype]
