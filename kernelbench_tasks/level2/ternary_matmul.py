"""Matrix product with weights of -1, 0 and 1, four in a byte, and one scale per output.

    y[m, n] = scale[n] * sum over k of (code[n, k] - 1) * x[m, k]

Language models trained with ternary weights, which need neither multiplications nor much memory.

Where time is lost: no dtype is that small, so eager spreads each byte over sixteen and multiplies in full precision.
Sixteen weights fit a word; additions and subtractions under two bit masks, or small tables of partial sums, do the
rest.

Operations: rows * inner * cols additions. Bytes: inner * cols / 4 for the weights. Source: Ma et al., "The Era of 1-bit
LLMs: All Large Language Models are in 1.58 Bits", arXiv 2402.17764; Wei et al., "T-MAC", arXiv 2407.00088.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 128, default=4, gpu=128),
    "inner": Dim(4, 8192, multiple_of=4, default=1024, gpu=8192),
    "cols": Dim(8, 8192, default=1024, gpu=8192),
}


class Model(nn.Module):
    def __init__(self, inner: int, cols: int):
        super().__init__()
        self.register_buffer("codes", torch.zeros(cols, inner // 4, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols))
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([self.codes >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(1)
        return F.linear(x, codes.to(x.dtype) - 1) * self.scale


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    cols, quarter = model.codes.shape
    codes = torch.randint(0, 3, (4, cols, quarter), generator=generator, dtype=torch.uint8)
    model.codes.copy_(codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6)
    model.scale.uniform_(0.5, 1.5, generator=generator).mul_((4 * quarter) ** -0.5)


def get_inputs(rows: int = 4, inner: int = 1024) -> list[torch.Tensor]:
    return [torch.randn(rows, inner)]


def get_init_inputs(inner: int = 1024, cols: int = 1024) -> list[int]:
    return [inner, cols]
