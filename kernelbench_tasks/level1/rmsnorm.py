"""RMSNorm over the last dimension with a learned scale.

    y = x / sqrt(mean(x * x) + eps) * weight

The normalization of most recent language models, before attention, before the MLP and at the end.

Where time is lost: one reduction and a few multiplications over a tensor that is read once and written once, so memory
traffic decides. Eager takes several kernels with a temporary each. A compiler fuses them, but reads every row twice, and
at the few rows of token-by-token decoding the cost of the call exceeds that of the work.

Bytes: 8 per element at float32, plus 4 per column. Source: Zhang, Sennrich, "Root Mean Square Layer Normalization",
arXiv 1910.07467.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512, gpu=8192),
    "cols": Dim(8, 8192, default=1024, gpu=4096),
    "dtype": Choice("float32"),
}


class Model(nn.Module):
    def __init__(self, cols: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs(cols: int = 1024) -> list[int]:
    return [cols]
