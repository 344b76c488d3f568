"""Gated linear recurrence along a sequence, forward and backward.

    h[t] = a[t] * h[t - 1] + b[t],   a = sigmoid(gate)
    g[t] = dh[t] + a[t + 1] * g[t + 1],   db = g,   dgate[t] = g[t] * h[t - 1] * a[t] * (1 - a[t])

Training of linear recurrent language models.

Where time is lost: the derivative of a scan by doubling keeps every level of it, log2(length) pairs of tensors, and
walks back through all of them. The gradient is itself a scan, from the end to the start, and needs gate and h only.

Bytes at float32: 12 per element forward, 20 backward. Source: Martin, Cundy, "Parallelizing Linear Recurrent Neural
Nets Over Sequence Length", arXiv 1709.04057; De et al., "Griffin", arXiv 2402.19427.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 8, default=2, gpu=8),
    "length": Dim(2, 2048, default=250, gpu=2048),
    "channels": Dim(1, 512, default=96, gpu=512),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, h = torch.sigmoid(gate), b
        length, step = a.shape[1], 1
        while step < length:
            h = h + a * F.pad(h, (0, 0, step, 0))[:, :length]
            a = a * F.pad(a, (0, 0, step, 0))[:, :length]
            step *= 2
        return h


def get_inputs(batch: int = 2, length: int = 250, channels: int = 96) -> list[torch.Tensor]:
    return [1.0 + torch.randn(batch, length, channels), torch.randn(batch, length, channels)]


def get_init_inputs() -> list[int]:
    return []
