"""Matrix product with weights of four bits, in groups of 64 with a scale and a zero point each.

    w[n, k] = (code[n, k] - zero[n, k div 64]) * scale[n, k div 64],   y = x @ w.T;   two codes in a byte, the even one low

Language models quantized by GPTQ or AWQ; at few tokens a quarter of the bytes means up to four times the speed.

Where time is lost: eager unpacks the weights into memory at every call, nine bytes moved for each half byte read, and
more kernels than products. Unpacked in registers, next to the multiplication, with scales applied per group, the packed
bytes are all that is read; the order of the nibbles decides what unpacking costs, and may be changed once, when the
module is built.

Operations: 2 * rows * inner * cols. Bytes: inner * cols / 2 for the weights. Source: Frantar et al., "GPTQ", arXiv
2210.17323; "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", arXiv 2504.12984.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 256, default=8, gpu=128),
    "inner": Dim(64, 4096, multiple_of=64, default=1024, gpu=4096),
    "cols": Dim(8, 14336, default=1024, gpu=14336),
    "dtype": Choice("float32", "bfloat16"),
}
GROUP = 64


class Model(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind, groups = getattr(torch, dtype), inner // GROUP
        self.register_buffer("codes", torch.zeros(cols, inner // 2, dtype=torch.uint8))
        self.register_buffer("zero", torch.zeros(cols, groups, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols, groups, dtype=kind))
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([self.codes & 15, self.codes >> 4], dim=-1).flatten(1).unflatten(1, (-1, GROUP))
        centered = codes.to(self.scale.dtype) - self.zero.to(self.scale.dtype).unsqueeze(-1)
        return F.linear(x, (centered * self.scale.unsqueeze(-1)).flatten(1))


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    inner = 2 * model.codes.shape[1]
    model.codes.random_(0, 256, generator=generator)
    model.zero.random_(6, 11, generator=generator)
    model.scale.uniform_(0.1, 0.3, generator=generator).mul_(inner**-0.5)


def get_inputs(rows: int = 8, inner: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 1024, cols: int = 1024, dtype: str = "float32") -> list[int | str]:
    return [inner, cols, dtype]
