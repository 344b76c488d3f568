"""Sums of many tensors of different sizes, one number each.

    y[i] = sum over all elements of tensor i

What a training step does to the gradients of a whole model, thousands of them, from biases of 64 elements to matrices
of millions: checks for overflow, norms per layer, statistics for a log.

Where time is lost: a kernel per tensor. Most of the tensors are so small that a launch takes a hundred times longer
than the sum; a compiler makes as many kernels, one after the other, since the sizes differ. One launch that walks over
a table of pointers and sizes, with the large tensors split and the small ones grouped, is bound by memory alone.

Bytes: 4 per element at float32, plus 4 per tensor. Source: PyTorch documentation of torch.optim, section on foreach and
fused implementations, which exist for the same reason.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "count": Dim(1, 2048, default=128, gpu=2048),
    "width": Dim(4, 256, multiple_of=4, default=64, gpu=256),
}


class Model(nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([tensor.sum() for tensor in tensors])


def get_inputs(count: int = 128, width: int = 64) -> list[list[torch.Tensor]]:
    # The shapes of a layer of a transformer, again and again: norms, biases and few large matrices.
    layer = [
        (width,),
        (width,),
        (3 * width,),
        (width,),
        (width // 4, width),
        (width,),
        (4 * width,),
        (width, width),
    ]
    return [[torch.randn(layer[index % len(layer)]) for index in range(count)]]


def get_init_inputs() -> list[int]:
    return []
