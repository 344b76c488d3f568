"""Weights in NormalFloat4 back to 16 bits: a table of 16 values and a scale per block of 64, itself quantized.

    y[i] = table[code[i]] * (scale8[b] / 127 * scale32[c] + shift),   b = i / 64, c = b / 256; two codes in a byte

Fine-tuning with QLoRA expands each frozen weight before every product, forward and backward.

Where time is lost: eager separates the nibbles into index tensors of 64 bits and gathers from the table through memory,
twenty bytes for each half byte. A table of sixteen fits a register or a shuffle, and a vector of codes becomes a vector
of results.

Bytes: 2.5 per element at bfloat16. Source: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: Efficient Finetuning of
Quantized LLMs", arXiv 2305.14314, section 3.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 4096, default=256, gpu=4096),
    "cols": Dim(64, 16384, multiple_of=64, default=1024, gpu=11008),
    "dtype": Choice("bfloat16", "float32"),
}
BLOCK, BLOCKS_PER_SCALE = 64, 256


class Model(nn.Module):
    def __init__(self, dtype: str):
        super().__init__()
        self.dtype = getattr(torch, dtype)
        # Quantiles of a normal distribution, symmetric, with an exact zero.
        upper = torch.special.ndtri(torch.linspace(0.5, 0.97, 9))
        lower = torch.special.ndtri(torch.linspace(0.03, 0.5, 8))
        table = torch.cat([lower / lower.abs().max(), upper[1:] / upper.max()])
        self.register_buffer("table", table)

    def forward(self, codes: torch.Tensor, scale8: torch.Tensor, scale32: torch.Tensor) -> torch.Tensor:
        index = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
        of_block = torch.arange(scale8.numel(), device=codes.device) // BLOCKS_PER_SCALE
        scale = scale8.float().flatten() / 127 * scale32[of_block] + 2.0
        values = self.table[index].unflatten(-1, (-1, BLOCK)) * scale.view(*scale8.shape, 1)
        return values.flatten(-2).to(self.dtype)


def get_inputs(rows: int = 256, cols: int = 1024) -> list[torch.Tensor]:
    blocks = cols // BLOCK
    codes = torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8)
    scale8 = torch.randint(-127, 128, (rows, blocks), dtype=torch.int8)
    return [codes, scale8, 0.5 + torch.rand(-(-rows * blocks // BLOCKS_PER_SCALE))]


def get_init_inputs(dtype: str = "bfloat16") -> list[str]:
    return [dtype]
