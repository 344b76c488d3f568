"""Matrix product with a block-sparse weight: each block row has its own few blocks.

    y[m, r * b : (r + 1) * b] = sum over s of block[r, s] @ x[m, c * b : (c + 1) * b] + bias,   c = column[r, s]

Pruned language models, sparse attention patterns, coupling matrices of physical models.

Where time is lost: eager gathers the pieces of x once per block row and writes them all; dense, it multiplies by zeros.
A tile per block row that reads its pieces of x in place and keeps the sum in registers touches the stored blocks once.

Operations: 2 * rows * stored elements. Bytes at float32: 4 * stored elements + 4 * rows * (inner + cols). Source: Gray,
Radford, Kingma, "GPU Kernels for Block-Sparse Weights", OpenAI 2017; Gale et al., "Sparse GPU Kernels for Deep
Learning", arXiv 2006.10901.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 8192, default=64, gpu=8192),
    "block_rows": Dim(1, 64, default=16, gpu=64),
    "block_cols": Dim(2, 64, default=24, gpu=64),
    "stored": Dim(1, 8, default=4, gpu=8),
    "block": Dim(8, 32, multiple_of=8, default=16, gpu=32),
}


class Model(nn.Module):
    def __init__(self, block_rows: int, block_cols: int, stored: int, block: int):
        super().__init__()
        self.block_cols = block_cols
        self.register_buffer("blocks", torch.zeros(block_rows, stored, block, block))
        self.register_buffer("column", torch.zeros(block_rows, stored, dtype=torch.long))
        self.register_buffer("bias", torch.zeros(block_rows * block))
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = x.unflatten(-1, (self.block_cols, -1))[:, self.column]  # rows, block rows, stored, block
        return torch.einsum("mrsi,rsoi->mro", pieces, self.blocks).flatten(1) + self.bias


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    _, stored, block, _ = model.blocks.shape
    model.blocks.normal_(generator=generator).mul_((stored * block) ** -0.5)
    model.column.random_(0, model.block_cols, generator=generator)
    model.bias.normal_(generator=generator)


def get_inputs(rows: int = 64, block_cols: int = 24, block: int = 16) -> list[torch.Tensor]:
    return [torch.randn(rows, block_cols * block)]


def get_init_inputs(
    block_rows: int = 16, block_cols: int = 24, stored: int = 4, block: int = 16
) -> list[int]:
    return [block_rows, block_cols, stored, block]
