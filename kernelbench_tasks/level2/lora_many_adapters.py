"""A shared projection plus a low-rank adapter that each row chooses for itself.

    y[i] = weight @ x[i] + up[a] @ (down[a] @ x[i]),   a = adapter[i]

Serving of many fine-tuned variants of one model in a batch.

Where time is lost: gathering the adapters of all rows writes them to memory once per row, and the batched product of
single rows reads them again; rows with the same adapter share nothing. Grouped by adapter, or gathered in place by a
kernel that keeps the small intermediate in registers, the adapters are read once.

Operations: 2 * rows * (inner * cols + rank * (inner + cols)). Bytes at float32: 4 * inner * cols and the adapters in
use. Source: Hu et al., "LoRA", arXiv 2106.09685; Chen et al., "Punica: Multi-Tenant LoRA Serving", arXiv 2310.18547.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 512, default=32, gpu=512),
    "adapters": Dim(1, 64, default=8, gpu=64),
    "rank": Dim(1, 32, default=8, gpu=16),
    "inner": Dim(8, 4096, default=512, gpu=4096),
    "cols": Dim(8, 4096, default=768, gpu=4096),
}


class Model(nn.Module):
    def __init__(self, adapters: int, rank: int, inner: int, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols, inner) * inner**-0.5)
        self.down = nn.Parameter(torch.randn(adapters, rank, inner) * inner**-0.5)
        self.up = nn.Parameter(torch.randn(adapters, cols, rank) * rank**-0.5)

    def forward(self, x: torch.Tensor, adapter: torch.Tensor) -> torch.Tensor:
        hidden = torch.bmm(self.down[adapter], x.unsqueeze(-1))
        return F.linear(x, self.weight) + torch.bmm(self.up[adapter], hidden).squeeze(-1)


def get_inputs(rows: int = 32, adapters: int = 8, inner: int = 512) -> list[torch.Tensor]:
    return [torch.randn(rows, inner), torch.randint(0, adapters, (rows,))]


def get_init_inputs(adapters: int = 8, rank: int = 8, inner: int = 512, cols: int = 768) -> list[int]:
    return [adapters, rank, inner, cols]
