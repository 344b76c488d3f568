"""Median and median absolute deviation of many short rows.

    m[i] = median of x[i],   d[i] = median of |x[i] - m[i]|; of an even number of elements the lower middle one

Robust statistics of pixels over a stack of exposures, of gradients over workers (Byzantine aggregation), of sensors
over a window.

Where time is lost: a selection built for long rows, called twice, with the absolute deviations in memory in between. A
row of some hundred elements fits the registers of a warp, where a sorting network gives the median, and the second
median is a merge of the two sorted halves.

Bytes: 4 per element at float32, plus 8 per row. Source: Rousseeuw, Croux, "Alternatives to the Median Absolute
Deviation", 1993; Yin et al., "Byzantine-Robust Distributed Learning", arXiv 1803.01498.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 65536, default=4096, gpu=65536), "cols": Dim(3, 512, default=65, gpu=511)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        median = x.median(dim=-1, keepdim=True).values
        deviation = (x - median).abs().median(dim=-1).values
        return median.squeeze(-1), deviation


def get_inputs(rows: int = 4096, cols: int = 65) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return []
