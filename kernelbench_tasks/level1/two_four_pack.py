"""Structured pruning: of each four neighbors the two largest stay, packed, with two bits for the place of each.

    kept = the two of x[i, 4 j ... 4 j + 3] largest in magnitude (the first of equals), in their order
    code[i, j] = place of the first + 4 * place of the second

The sparse format of matrix units; in training with sparse weights or activations it is made anew in each step.

Where time is lost: a sort per four elements, with 64-bit places, then another sort of the places and a gather: a
hundred bytes moved for each element. Six comparisons decide between six cases, all in registers, and results are stored
in words.

Bytes: 6.25 per element at float32. Source: Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv 2104.08378;
Pool, Yu, "Channel Permutations for N:M Sparsity", 2021.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 4096, default=256, gpu=4096),
    "cols": Dim(4, 8192, multiple_of=4, default=1024, gpu=8192),
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups = x.unflatten(-1, (-1, 4))
        order = groups.abs().sort(dim=-1, descending=True, stable=True).indices
        place = order[..., :2].sort(dim=-1).values
        kept = groups.gather(-1, place).flatten(-2)
        return kept, (place[..., 0] + 4 * place[..., 1]).to(torch.uint8)


def get_inputs(rows: int = 256, cols: int = 1024) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return []
