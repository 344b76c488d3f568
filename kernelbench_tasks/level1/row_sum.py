"""Sum over the last dimension.

    y[i] = sum over j of x[i, j]

Losses, gradients of a bias, pooling, attention scores.

Where time is lost: the operation only reads, so it should run at the speed of memory. Generic reductions choose their
split for square tensors: one long row leaves most of the machine idle, and thousands of short rows pay for a tree of
partial sums that they do not need. Accuracy is a trap too: one running sum over 8192 values loses three digits.

Bytes: 4 per element at float32. Source: Harris, "Optimizing Parallel Reduction in CUDA", NVIDIA 2007.
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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs() -> list[int]:
    return []
