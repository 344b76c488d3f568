"""LayerNorm over the last dimension, ReLU, plus a residual.

    y = relu((x - mean(x)) / sqrt(var(x) + eps) * weight + bias) + residual

Mean and (biased) variance run over the last dimension. The pattern closes a pre-activation residual branch: MLP-Mixer
and ResMLP style blocks, tabular ResNets, graph networks with node normalisation.

Where time is lost: the operation moves three tensors (x and residual in, y out) and does little arithmetic, so memory
traffic decides. Eager makes three kernels and two temporaries, eight transfers in place of three. A compiler fuses the
tail, but reads a row several times (mean, variance, normalise), and on a CPU it writes y with ordinary stores, which
first read the cache line that they are about to overwrite.

Bytes: 12 per element at float32, plus 8 per column. Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv 1607.06450.
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
    def __init__(self, cols: int, eps: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(x)) + residual


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    return [torch.randn(rows, cols, dtype=kind), torch.randn(rows, cols, dtype=kind)]


def get_init_inputs(cols: int = 1024) -> list[int]:
    return [cols]
