# task: softmax
# style: autotuned Triton
"""Autotuned Triton: block sizes and warps chosen by a search over the column count."""

import torch
import triton
import triton.language as tl
from torch import nn

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 512, 1024) for warps in (2, 4)]


@triton.autotune(configs=CONFIGS, key=["cols"])
@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * cols
    y += row * cols
    top = float("-inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < cols, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(value - new_top), 0)
        top = new_top
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < cols, other=float("-inf"))
        tl.store(y + at, tl.exp(value - top) / total, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1])
        return y
