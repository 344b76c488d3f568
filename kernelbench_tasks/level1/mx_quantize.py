"""Quantization to MXFP8: blocks of 32 elements share a power of two.

    exponent = floor(log2(max |x|)) - 8 per block,   code = float8_e4m3fn(x / 2^exponent), clamped to +-448

The microscaling format that recent matrix units multiply directly; activations are converted before every product.

Where time is lost: a maximum over a short block, an exponent and a conversion are three to six kernels in eager, each
over the whole tensor. A thread that holds eight or sixteen neighbors needs one exchange with its neighbors and reads
the tensor once, in vectors; the power of two comes from the bits of the maximum, without a logarithm.

Bytes: 5 per element at float32, plus 1 per block. Source: OCP Microscaling Formats (MX) Specification v1.0.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 8192, default=256, gpu=8192),
    "cols": Dim(32, 16384, multiple_of=32, default=1024, gpu=4096),
    "dtype": Choice("float32", "bfloat16"),
}
BLOCK, LARGEST, LARGEST_EXPONENT = 32, 448.0, 8


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = x.float().unflatten(-1, (-1, BLOCK))
        largest = blocks.abs().amax(-1, keepdim=True)
        # frexp has its mantissa in [0.5, 1).
        exponent = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
        exponent = torch.where(largest > 0, exponent, -127).clamp(-127, 127)
        scaled = torch.ldexp(blocks, -exponent).clamp(-LARGEST, LARGEST)
        return scaled.flatten(-2).to(torch.float8_e4m3fn), (exponent + 127).squeeze(-1).to(torch.uint8)


def get_inputs(rows: int = 256, cols: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    # Blocks of different size, as those of real activations.
    x = torch.randn(rows, cols // BLOCK, BLOCK) * torch.exp2(2 * torch.randn(rows, cols // BLOCK, 1))
    return [x.flatten(-2).to(getattr(torch, dtype))]


def get_init_inputs() -> list[int]:
    return []
