"""Matrix product with bias and ReLU.

    y = relu(x @ weight.T + bias)

A layer of a perceptron.

Where time is lost: the product itself is a library's best case when all sizes are large and round. With few rows it is
bound by reading the weights, odd sizes fall off the fast paths, and bias and ReLU as kernels of their own move the output
four times more than needed.

Operations: 2 * rows * inner * cols. Bytes at float32: 4 * (rows * inner + inner * cols + rows * cols). Source: the cuBLASLt
documentation on epilogues; the operation is as old as the perceptron (Rosenblatt 1958).
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 4096, default=128, gpu=4096),
    "inner": Dim(8, 2048, default=512, gpu=2048),
    "cols": Dim(8, 2048, default=512, gpu=2048),
    "dtype": Choice("float32"),
}


class Model(nn.Module):
    def __init__(self, inner: int, cols: int):
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs(rows: int = 128, inner: int = 512, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 512, cols: int = 512) -> list[int]:
    return [inner, cols]
