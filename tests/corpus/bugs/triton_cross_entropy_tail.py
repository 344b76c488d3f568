# task: cross_entropy
# slip: tail mask missing
"""The last block's tail belongs to the next row's logits."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, target, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = float("-inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        value = tl.load(x + row * cols + start + tl.arange(0, BLOCK))
        new_top = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(value - new_top), 0)
        top = new_top
    picked = tl.load(x + row * cols + tl.load(target + row))
    tl.store(y + row, top + tl.log(total) - picked)


class ModelNew(nn.Module):
    def forward(self, logits, target):
        y = torch.empty(logits.shape[0], device=logits.device)
        kernel[(logits.shape[0],)](logits, target, y, logits.shape[1], BLOCK=64)
        return y
