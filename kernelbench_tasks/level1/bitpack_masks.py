"""Packs masks of 32 booleans into words and counts those that are set.

    word[i, j] = sum over b of 2^b * mask[i, 32 j + b],   count[i] = number of set flags in row i

Dropout and attention masks kept for the backward pass, sieves of sparse formats, bloom filters, bitmap indexes.

Where time is lost: eager widens each flag to 64 bits to shift it, 8 bytes for each bit that is kept, and counts in
another pass over the flags. A vote of a warp, or a comparison of a vector register, makes a word of 32 flags in one
instruction and the count is one more.

Bytes: 1 per flag, plus 4 per word and 8 per row. Source: Warren, "Hacker's Delight", chapter 5; CUDA C++ Programming
Guide, warp vote functions.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 8192, default=512, gpu=8192),
    "cols": Dim(32, 16384, multiple_of=32, default=2048, gpu=16384),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(32))

    def forward(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bits = mask.unflatten(-1, (-1, 32)).long() << self.shifts
        # The upper half of the range becomes negative, as in any cast to a signed word.
        return bits.sum(-1).to(torch.int32), mask.sum(-1)


def get_inputs(rows: int = 512, cols: int = 2048) -> list[torch.Tensor]:
    return [torch.rand(rows, cols) < 0.5]


def get_init_inputs() -> list[int]:
    return []
