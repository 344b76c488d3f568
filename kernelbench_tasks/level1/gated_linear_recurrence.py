"""Gated linear recurrence along a sequence.

    h[t] = a[t] * h[t - 1] + b[t],   h[-1] = 0,   a = sigmoid(gate)

The core of state-space and linear recurrent language models (S4, Mamba, RG-LRU), of exponential smoothing with a
varying rate and of eligibility traces.

Where time is lost: step by step, a launch per position; by doubling, as here, log2(length) passes over whole tensors. A
thread per channel that walks along the sequence reads and writes everything once, but there are few channels when the
batch is small: then chunks are scanned on their own and joined by a second, short scan.

Bytes: 12 per element at float32. Source: Blelloch, "Prefix Sums and Their Applications", CMU-CS-90-190; De et al.,
"Griffin", arXiv 2402.19427.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=4, gpu=16),
    "length": Dim(1, 8192, default=512, gpu=2048),
    "channels": Dim(1, 1024, default=256, gpu=1024),
}


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, h = torch.sigmoid(gate), b
        length, step = a.shape[1], 1
        while step < length:
            h = h + a * F.pad(h, (0, 0, step, 0))[:, :length]
            a = a * F.pad(a, (0, 0, step, 0))[:, :length]
            step *= 2
        return h


def get_inputs(batch: int = 4, length: int = 512, channels: int = 256) -> list[torch.Tensor]:
    return [1.0 + torch.randn(batch, length, channels), torch.randn(batch, length, channels)]


def get_init_inputs() -> list[int]:
    return []
