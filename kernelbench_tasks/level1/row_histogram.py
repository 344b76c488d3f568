"""Histogram of the labels in each row.

    y[i, b] = number of j with label[i, j] = b

Counting of tokens per expert, of codes for entropy coders, of pixels per gray value for equalization, of k-mers.

Where time is lost: a scatter of ones writes a tensor of ones first, and its atomic additions all hit the same few lines
of memory when the labels repeat. Counts of a row fit shared memory or registers; they are added up privately and
written once.

Bytes: 4 per label and 8 per bin at int32 labels. Source: Gómez-Luna et al., "An optimized approach to histogram
computation on GPU", 2013; PyTorch documentation of torch.bincount, which takes one row and synchronizes.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 2048, default=128, gpu=2048),
    "cols": Dim(8, 65536, default=4096, gpu=16384),
    "bins": Dim(2, 1024, default=128, gpu=256),
}


class Model(nn.Module):
    def __init__(self, bins: int):
        super().__init__()
        self.bins = bins

    def forward(self, label: torch.Tensor) -> torch.Tensor:
        index = label.long()
        counts = torch.zeros(index.shape[0], self.bins, dtype=torch.long, device=index.device)
        return counts.scatter_add(1, index, torch.ones_like(index))


def get_inputs(rows: int = 128, cols: int = 4096, bins: int = 128) -> list[torch.Tensor]:
    # Small labels are frequent, as in text.
    label = (torch.rand(rows, cols).square() * bins).to(torch.int32)
    return [label.clamp(max=bins - 1)]


def get_init_inputs(bins: int = 128) -> list[int]:
    return [bins]
