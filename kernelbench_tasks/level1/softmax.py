"""Softmax over the last dimension.

    y = exp(x - max(x)) / sum(exp(x - max(x)))

Attention weights, routing of experts, class probabilities.

Where time is lost: maximum, sum and division each want the whole row. A row that fits a cache, or the registers of a
thread block, need be read only once; generic code reads it two or three times and computes the exponential twice. Very
short and very long rows want different kernels.

Bytes: 8 per element at float32, one exponential each. Source: Milakov, Gimelshein, "Online normalizer calculation for
softmax", arXiv 1805.02867.
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
        return torch.softmax(x, dim=-1)


def get_inputs(rows: int = 512, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs() -> list[int]:
    return []
