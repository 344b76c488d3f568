"""A product through a narrow middle with a gate on the result.

    y = sigmoid(gate) * ((x @ down.T) @ up.T + bias)

Compressed layers, adapters, bottlenecks of channel attention and of data-dependent mixing (RWKV, Griffin).

Where time is lost: with a middle of four to sixty-four columns both products are bound by memory, and the library
treats them as two thin products that each miss the machine; gate and bias are further passes over the widest tensor.
The middle of a row block fits registers, so x, gate and y can be touched once each.

Operations: 2 * rows * rank * (inner + cols). Bytes at float32: 4 * rows * (inner + 2 * cols). Source: Houlsby et al.,
"Parameter-Efficient Transfer Learning for NLP", arXiv 1902.00751.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 8192, default=512, gpu=8192),
    "inner": Dim(8, 4096, default=768, gpu=4096),
    "rank": Dim(1, 64, default=16, gpu=64),
    "cols": Dim(8, 4096, default=640, gpu=4096),
}


class Model(nn.Module):
    def __init__(self, inner: int, rank: int, cols: int):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, inner) * inner**-0.5)
        self.up = nn.Parameter(torch.randn(cols, rank) * rank**-0.5)
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(gate) * F.linear(F.linear(x, self.down), self.up, self.bias)


def get_inputs(rows: int = 512, inner: int = 768, cols: int = 640) -> list[torch.Tensor]:
    return [torch.randn(rows, inner), torch.randn(rows, cols)]


def get_init_inputs(inner: int = 768, rank: int = 16, cols: int = 640) -> list[int]:
    return [inner, rank, cols]
