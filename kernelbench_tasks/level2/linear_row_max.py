"""The best class of each row of a linear classifier, without its logits.

    value[i] = max over j of x[i] . weight[j],   index[i] = the first j that reaches it

Greedy decoding over a vocabulary, nearest codes of a vector quantizer by inner product, maximum inner product search.

Where time is lost: only two numbers a row are wanted, but the whole product goes to memory, twice when maximum and
place are separate passes. Each tile can reduce its columns in registers and keep the best.

Operations: 2 * rows * inner * classes. Bytes at float32: 4 * (rows + classes) * inner. Source: van den Oord, Vinyals,
Kavukcuoglu, "Neural Discrete Representation Learning", arXiv 1711.00937.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 2048, default=128, gpu=2048),
    "inner": Dim(8, 1024, default=192, gpu=1024),
    "classes": Dim(8, 32768, default=2000, gpu=32000),
}


class Model(nn.Module):
    def __init__(self, inner: int, classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, inner) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, index = (x @ self.weight.t()).max(dim=-1)
        return value, index


def get_inputs(rows: int = 128, inner: int = 192) -> list[torch.Tensor]:
    return [torch.randn(rows, inner)]


def get_init_inputs(inner: int = 192, classes: int = 2000) -> list[int]:
    return [inner, classes]
