"""Matrix product with weights in MXFP4: four-bit floats with a power of two per block of 32.

    w[n, k] = value(code[n, k]) * 2^(exponent[n, k div 32] - 127),   y = x @ w.T
    value(c) = sign * {0, 0.5, 1, 1.5, 2, 3, 4, 6}, the highest of the four bits being the sign; two codes in a byte

The format in which recent open models ship their experts.

Where time is lost: eager separates nibbles into 64-bit indices, gathers from a table in memory and scales, dozens of
bytes for each half byte. In registers a code becomes a 16-bit float by a shift or a byte permutation, and the power of
two is added to its exponent.

Operations: 2 * rows * inner * cols. Bytes: 0.53 * inner * cols for the weights. Source: OCP Microscaling Formats (MX)
Specification v1.0; Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv 2310.10537.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 256, default=16, gpu=128),
    "inner": Dim(32, 4096, multiple_of=32, default=1024, gpu=4096),
    "cols": Dim(8, 14336, default=768, gpu=14336),
    "dtype": Choice("float32", "bfloat16"),
}
BLOCK = 32


class Model(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        self.register_buffer("codes", torch.zeros(cols, inner // 2, dtype=torch.uint8))
        self.register_buffer("exponent", torch.zeros(cols, inner // BLOCK, dtype=torch.uint8))
        magnitude = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=getattr(torch, dtype))
        self.register_buffer("value", torch.cat([magnitude, -magnitude]), persistent=False)
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = torch.stack([self.codes & 15, self.codes >> 4], dim=-1).flatten(1).int()
        power = torch.exp2(self.exponent.to(x.dtype) - 127).unsqueeze(-1)
        return F.linear(x, (self.value[index].unflatten(1, (-1, BLOCK)) * power).flatten(1))


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    inner = 2 * model.codes.shape[1]
    model.codes.random_(0, 256, generator=generator)
    # About 1 / (2.5 sqrt(inner)), so that results have the size of x.
    middle = 126 - inner.bit_length() // 2
    model.exponent.random_(middle - 1, middle + 2, generator=generator)


def get_inputs(rows: int = 16, inner: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 1024, cols: int = 768, dtype: str = "float32") -> list[int | str]:
    return [inner, cols, dtype]
