"""Matrix product with weights of six bits, four of them in three bytes, and a scale per group of 128.

    w[n, k] = (code[n, k] - 32) * scale[n, k div 128],   y = x @ w.T

Six bits keep a language model's quality where four do not; the odd size is why nearly nobody offers them.

Where time is lost: codes straddle bytes, so eager takes a dozen passes of shifts over tensors that are wider than the
result. No library multiplies by them. Unpacked in registers from words of 96 bits, or split once into a plane of four
bits and one of two, the weights cost three quarters of a byte each.

Operations: 2 * rows * inner * cols. Bytes: 0.75 * inner * cols for the weights. Source: Xia et al., "FP6-LLM",
arXiv 2401.14112; "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", arXiv 2504.12984.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 256, default=4, gpu=128),
    "inner": Dim(128, 4096, multiple_of=128, default=1024, gpu=4096),
    "cols": Dim(8, 14336, default=768, gpu=14336),
    "dtype": Choice("float32", "bfloat16"),
}
GROUP = 128


class Model(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        self.register_buffer("codes", torch.zeros(cols, inner // 4, 3, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols, inner // GROUP, dtype=getattr(torch, dtype)))
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, middle, high = self.codes.unbind(-1)
        parts = [low & 63, low >> 6 | (middle & 15) << 2, middle >> 4 | (high & 3) << 4, high >> 2]
        codes = torch.stack(parts, dim=-1).flatten(1).unflatten(1, (-1, GROUP))
        weight = (codes.to(self.scale.dtype) - 32) * self.scale.unsqueeze(-1)
        return F.linear(x, weight.flatten(1))


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    inner = 4 * model.codes.shape[1]
    model.codes.random_(0, 256, generator=generator)
    model.scale.uniform_(0.03, 0.08, generator=generator).mul_(inner**-0.5)


def get_inputs(rows: int = 4, inner: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.randn(rows, inner, dtype=getattr(torch, dtype))]


def get_init_inputs(inner: int = 1024, cols: int = 768, dtype: str = "float32") -> list[int | str]:
    return [inner, cols, dtype]
