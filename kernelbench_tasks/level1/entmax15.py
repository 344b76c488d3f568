"""Entmax with exponent 1.5 over the last dimension: between softmax and sparsemax.

    y = max(x / 2 - tau, 0)^2 with tau such that y sums to 1

Sparse attention whose gradient does not stop, alignment in translation, interpretable selection.

Where time is lost: the exact algorithm sorts the rows and takes two running sums, fifteen passes in all. Tau is the
root of a smooth, decreasing function: a few Newton or bisection steps in registers over a row that is read once give it
to full precision.

Bytes: 8 per element at float32. Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", arXiv
1905.05702.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 8192, default=256, gpu=4096), "cols": Dim(8, 8192, default=1024, gpu=8192)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - x.amax(-1, keepdim=True)) / 2
        # Below the maximum minus one nothing counts; cut there, squares cannot drown the rest.
        ordered = x.sort(dim=-1, descending=True).values.clamp(min=-2.0)
        rank = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        mean = ordered.cumsum(-1) / rank
        spread = ordered.square().cumsum(-1) - rank * mean.square()
        tau = mean - ((1 - spread) / rank).clamp(min=0.0).sqrt()
        support = (tau <= ordered).sum(-1, keepdim=True)
        return (x - tau.gather(-1, support - 1)).clamp(min=0.0).square()


def get_inputs(rows: int = 256, cols: int = 1024) -> list[torch.Tensor]:
    return [2.0 * torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return []
