# task: rmsnorm
# style: torch.compile with CUDA graphs
# only: cuda
"""reduce-overhead keeps its outputs in the graph's memory, so the caller gets a copy."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps
        self.fast = None

    def compute(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight

    def forward(self, x):
        if self.fast is None:
            self.fast = torch.compile(self.compute, mode="reduce-overhead", dynamic=False)
        return self.fast(x).clone()
