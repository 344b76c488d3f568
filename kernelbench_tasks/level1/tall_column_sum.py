"""Sum over the rows of a tall and thin matrix.

    y[j] = sum over i of x[i, j]

The gradient of a bias or of a gain after a batch of many tokens; statistics per channel of channels-last images.

Where time is lost: a thread per column leaves the machine idle when there are eight columns and a million rows, and
neighboring threads that walk down their own columns waste memory transactions. The rows must be split over all cores or
blocks, with a second stage that is cheap; what split is best depends on both sizes.

Bytes: 4 per element at float32. Source: Harris, "Optimizing Parallel Reduction in CUDA", NVIDIA 2007.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 1048577, default=65537, gpu=1048576),
    "cols": Dim(1, 96, default=8, gpu=64),
    "dtype": Choice("float32", "bfloat16"),
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Sums of many 16-bit numbers are kept in 32 bits.
        return x.sum(dim=0, dtype=torch.float32)


def get_inputs(rows: int = 65537, cols: int = 8, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=getattr(torch, dtype))]


def get_init_inputs() -> list[int]:
    return []
