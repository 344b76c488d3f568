"""Running sum along the rows that starts anew at each flag.

    y[i, j] = x[i, j] + (0 if reset[i, j] or j = 0 else y[i, j - 1])

Returns of episodes in reinforcement learning, position within a document in packed batches, filters and compaction in
databases, line integrals over polylines.

Where time is lost: torch's cumsum has no resets. The difference of two running sums cancels; doubling, as here, makes
log2(length) passes over sums and flags. One pass of a scan carries the pair (sum, flag seen) through registers and
between tiles.

Bytes: 9 per element at float32. Source: Sengupta, Harris, Zhang, Owens, "Scan Primitives for GPU Computing", 2007;
Merrill, Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA 2016.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=128, gpu=4096), "length": Dim(1, 16384, default=1024, gpu=8192)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
        total, stopped = x, reset
        length, step = x.shape[-1], 1
        while step < length:
            before = F.pad(total, (step, 0))[:, :length]
            total = total + before.masked_fill(stopped, 0.0)
            stopped = stopped | F.pad(stopped, (step, 0), value=True)[:, :length]
            step *= 2
        return total


def get_inputs(rows: int = 128, length: int = 1024) -> list[torch.Tensor]:
    return [torch.randn(rows, length), torch.rand(rows, length) < 0.06]


def get_init_inputs() -> list[int]:
    return []
