"""Sum over the last dimension of half precision numbers, accumulated in float32 as PyTorch does."""

import torch
from torch import nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 1024, default=96),
    "cols": Dim(8, 4096, default=1024),
    "dtype": Choice("float16", "bfloat16"),
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs(rows: int = 96, cols: int = 1024, dtype: str = "float16") -> list[torch.Tensor]:
    return [(torch.rand(rows, cols) + 0.01).to(getattr(torch, dtype))]


def get_init_inputs():
    return []
