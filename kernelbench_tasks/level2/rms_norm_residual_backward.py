"""Residual addition and RMSNorm with both results in use, forward and backward.

    h = x + residual,   y = h * r * weight,   r = 1 / sqrt(mean(h^2) + eps),   u = dy * weight
    dx = dresidual = dh + r * u - h * r^3 * mean(u * h),   dweight = sum over rows of dy * h * r

The joint of a pre-norm transformer: h goes on as the residual, y into the block, and both bring gradients back.

Where time is lost: the two gradients of h are added in a pass of their own, the reduction along rows and the one down
the columns are separate kernels, and x and residual get copies of the same gradient. One pass over h, dh and dy does
it.

Bytes at float32: 16 per element forward, 16 backward. Source: Zhang, Sennrich, "Root Mean Square Layer Normalization",
arXiv 1910.07467; Hsu et al., "Liger Kernel", arXiv 2410.10989.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 8192, default=512, gpu=8192),
    "cols": Dim(4, 8192, default=1024, gpu=4096),
    "dtype": Choice("float32", "bfloat16"),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, cols: int, dtype: str):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols, dtype=getattr(torch, dtype)))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + residual
        return h, F.rms_norm(h, h.shape[-1:], self.weight, 1e-6)


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    return [torch.randn(rows, cols, dtype=kind), torch.randn(rows, cols, dtype=kind)]


def get_init_inputs(cols: int = 1024, dtype: str = "float32") -> list[int | str]:
    return [cols, dtype]
