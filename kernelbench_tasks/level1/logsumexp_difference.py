"""Difference of the logsumexp of two sets of scores.

    y[i] = log(sum over j of exp(a[i, j])) - log(sum over k of exp(b[i, k]))

Log-odds of two groups of answers, free-energy differences of two states, ratios of partition functions.

Where time is lost: two independent reductions, each with a maximum, an exponential and a sum, of which a library makes
six passes. One pass over both, with maximum and scaled sum kept together, reads everything once; the two lengths
differ.

Bytes: 4 per element at float32. Source: Blanchard, Higham, Higham, "Accurately computing the log-sum-exp and softmax
functions", 2021; Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 8192, default=256, gpu=8192),
    "first": Dim(1, 16384, default=1000, gpu=4096),
    "second": Dim(1, 16384, default=300, gpu=1024),
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(a, dim=-1) - torch.logsumexp(b, dim=-1)


def get_inputs(rows: int = 256, first: int = 1000, second: int = 300) -> list[torch.Tensor]:
    return [4.0 * torch.randn(rows, first), 4.0 * torch.randn(rows, second)]


def get_init_inputs() -> list[int]:
    return []
