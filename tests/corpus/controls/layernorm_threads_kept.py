# task: layernorm_relu_add
# style: worker threads
# only: cpu
"""A pool of threads that lives as long as the module and is idle between calls."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)
        self.pool = ThreadPoolExecutor(2)

    def part(self, x, residual, y):
        with torch.no_grad():
            torch.add(torch.relu(self.norm(x)), residual, out=y)

    def forward(self, x, residual):
        y = torch.empty_like(x)
        half = max(1, x.shape[0] // 2)
        parts = zip(x.split(half), residual.split(half), y.split(half))
        for job in [self.pool.submit(self.part, *part) for part in parts]:
            job.result()
        return y
