"""Twenty steps of Sinkhorn's algorithm in the log domain, and the transport plan.

    twenty times f = log(1 / n) - lse over j of (g[j] - c[i, j]),   g = log(1 / m) - lse over i of (f[i] - c[i, j])
    y[i, j] = n * m * exp(f[i] + g[j] - c[i, j])

Matching of point clouds and keypoints, balanced assignment of tokens to experts, color transfer.

Where time is lost: each half step reads the cost matrix and writes a sum of the same size before it reduces it, forty
times. A matrix that fits shared memory, or the second-level cache, need be read from memory once, and forty launches
can be one; rows and columns want different walks.

Bytes: 4 per cost at float32 when it stays on chip, 640 in eager. Source: Cuturi, "Sinkhorn Distances", arXiv 1306.0895;
Schmitzer, "Stabilized Sparse Scaling Algorithms for Entropy Regularized Transport Problems", arXiv 1610.06519.
"""

import math

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 64, default=4, gpu=64),
    "rows": Dim(1, 512, default=60, gpu=512),
    "cols": Dim(2, 512, default=70, gpu=512),
}
STEPS = 20


class Model(nn.Module):
    def forward(self, cost: torch.Tensor) -> torch.Tensor:
        rows, cols = cost.shape[1:]
        g = torch.zeros_like(cost[:, :1])
        for _ in range(STEPS):
            f = -math.log(rows) - torch.logsumexp(g - cost, dim=2, keepdim=True)
            g = -math.log(cols) - torch.logsumexp(f - cost, dim=1, keepdim=True)
        return torch.exp(f + g - cost + math.log(rows * cols))


def get_inputs(batch: int = 4, rows: int = 60, cols: int = 70) -> list[torch.Tensor]:
    # Costs over the strength of the regularization.
    return [3.0 * torch.rand(batch, rows, cols)]


def get_init_inputs() -> list[int]:
    return []
