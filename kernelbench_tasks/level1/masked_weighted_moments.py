"""Weighted mean and standard deviation of the valid elements of each row.

    s = sum of w over valid,   m = sum of w x / s,   d = sqrt(sum of w (x - m)^2 / s + eps);   0 and sqrt(eps) where none is valid

Normalization of series with gaps, attentive statistics pooling of speakers, aggregation of sensors.

Where time is lost: masks make copies of weights and values, and five reductions over them follow, each a pass. Value,
weight and mask need be read once, if the two moments are merged with care, or twice from a cache.

Bytes: 9 per element at float32. Source: West, "Updating Mean and Variance Estimates: An Improved Method", 1979; Okabe,
Koshinaka, Shinoda, "Attentive Statistics Pooling for Deep Speaker Embedding", arXiv 1803.10963.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 64, default=8, gpu=64),
    "channels": Dim(1, 256, default=32, gpu=256),
    "length": Dim(2, 8192, default=500, gpu=2048),
}
EPS = 1e-4


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, valid: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weight = weight * valid
        total = weight.sum(-1, keepdim=True).clamp(min=EPS)
        mean = (weight * x).sum(-1, keepdim=True) / total
        variance = (weight * (x - mean).square()).sum(-1) / total.squeeze(-1)
        return mean.squeeze(-1), torch.sqrt(variance + EPS)


def get_inputs(batch: int = 8, channels: int = 32, length: int = 500) -> list[torch.Tensor]:
    shape = (batch, channels, length)
    return [1.0 + torch.randn(shape), 0.1 + torch.rand(shape), torch.rand(shape) < 0.7]


def get_init_inputs() -> list[int]:
    return []
