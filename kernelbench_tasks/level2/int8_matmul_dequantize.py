"""Product of two int8 matrices with a scale per row and per column, and a bias.

    y[m, n] = (sum over k of x[m, k] * w[n, k]) * row_scale[m] * scale[n] + bias[n]

Inference with 8-bit weights and activations (SmoothQuant, LLM.int8), vision models on edge devices.

Where time is lost: torch's own product of int8 matrices is private and wants multiples of 8 or 16, so the portable way
widens both to float32, four times the bytes, and multiplies far from the integer units; scales and bias are further
passes. Integer units with scales in the epilogue do it in one.

Operations: 2 * rows * inner * cols. Bytes: rows * inner + inner * cols + 4 * rows * cols. Source: Dettmers et al.,
"LLM.int8()", arXiv 2208.07339; Xiao et al., "SmoothQuant", arXiv 2211.10438.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 2048, default=65, gpu=2048),
    "inner": Dim(8, 4096, default=1023, gpu=4096),
    "cols": Dim(8, 4096, default=515, gpu=4096),
}


class Model(nn.Module):
    def __init__(self, inner: int, cols: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(cols, inner, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(cols))
        self.register_buffer("bias", torch.zeros(cols))
        redraw(self, torch.default_generator)

    def forward(self, x: torch.Tensor, row_scale: torch.Tensor) -> torch.Tensor:
        # Sums stay below 2^24 up to an inner size of 1040, so float32 holds them exactly there.
        product = F.linear(x.to(self.scale.dtype), self.weight.to(self.scale.dtype))
        return product * row_scale.unsqueeze(-1) * self.scale + self.bias


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    inner = model.weight.shape[1]
    model.weight.random_(-127, 128, generator=generator)
    model.scale.uniform_(0.01, 0.02, generator=generator).mul_(inner**-0.5)
    model.bias.normal_(generator=generator)


def get_inputs(rows: int = 65, inner: int = 1023) -> list[torch.Tensor]:
    return [torch.randint(-127, 128, (rows, inner), dtype=torch.int8), 0.01 + 0.02 * torch.rand(rows)]


def get_init_inputs(inner: int = 1023, cols: int = 515) -> list[int]:
    return [inner, cols]
