"""Two gates over a packed projection, plus a residual.

    y = residual + silu(a) * b * sigmoid(c),   (a, b, c) = the three parts of a row of packed

Gated attention outputs and gated state-space blocks, whose gates come out of one projection.

Where time is lost: the parts lie at a stride of three rows; eager makes five kernels and four temporaries. A compiler
fuses them, but with odd widths and strides it gives up wide loads, and divides to find row and column of each element.

Bytes: 20 per element at float32. Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202; Qiu et al.,
"Gated Attention for Large Language Models", arXiv 2505.06708.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512, gpu=8192),
    "cols": Dim(1, 8192, default=1000, gpu=4096),
    "dtype": Choice("float32", "bfloat16"),
}


class Model(nn.Module):
    def forward(self, packed: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        a, b, c = packed.unbind(1)
        return residual + F.silu(a) * b * torch.sigmoid(c)


def get_inputs(rows: int = 512, cols: int = 1000, dtype: str = "float32") -> list[torch.Tensor]:
    kind = getattr(torch, dtype)
    return [torch.randn(rows, 3, cols, dtype=kind), torch.randn(rows, cols, dtype=kind)]


def get_init_inputs() -> list[int]:
    return []
