"""Right Triton kernels, each with several block sizes and numbers of warps."""

from __future__ import annotations

from tests.corpus.corpus import Entry

_TRITON_HEAD = """
import torch
import triton
import triton.language as tl
from torch import nn
"""
_TRITON = {
    "row_sum": """
@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(y + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=SIZE, num_warps=WARPS)
        return y
""",
    "rmsnorm": """
@triton.jit
def kernel(x, weight, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / cols + eps)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
        tl.store(y + row * cols + at, value * scale * tl.load(weight + at, mask=at < cols), mask=at < cols)


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], self.eps, BLOCK=SIZE, num_warps=WARPS)
        return y
""",
    "swiglu": """
@triton.jit
def kernel(gate, up, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(gate + at, mask=at < count)
    tl.store(y + at, value * tl.sigmoid(value) * tl.load(up + at, mask=at < count), mask=at < count)


class ModelNew(nn.Module):
    def forward(self, gate, up):
        y = torch.empty_like(gate)
        kernel[(triton.cdiv(gate.numel(), SIZE),)](gate, up, y, gate.numel(), BLOCK=SIZE, num_warps=WARPS)
        return y
""",
    "bias_gelu": """
from triton.language.extra import libdevice


@triton.jit
def kernel(x, bias, y, count, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.load(bias + at % cols, mask=at < count)
    inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
    tl.store(y + at, 0.5 * value * (1.0 + libdevice.tanh(inner)), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), SIZE),)
        kernel[grid](x, self.bias, y, x.numel(), x.shape[1], BLOCK=SIZE, num_warps=WARPS)
        return y
""",
    "cross_entropy": """
@triton.jit
def kernel(x, target, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = float("-inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < cols, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(value - new_top), 0)
        top = new_top
    picked = tl.load(x + row * cols + tl.load(target + row))
    tl.store(y + row, top + tl.log(total) - picked)


class ModelNew(nn.Module):
    def forward(self, logits, target):
        y = torch.empty(logits.shape[0], device=logits.device)
        kernel[(logits.shape[0],)](logits, target, y, logits.shape[1], BLOCK=SIZE, num_warps=WARPS)
        return y
""",
}


def triton_variants() -> list[Entry]:
    """Right Triton kernels with several block sizes and numbers of warps."""
    entries = []
    for task, text in _TRITON.items():
        for size in (64, 512):
            for warps in (2, 8):
                name = f"{task}_triton_{size}_{warps}w"
                source = f'"""{name}."""\n' + _TRITON_HEAD + "\n" + text.strip("\n") + "\n"
                source = source.replace("SIZE", str(size)).replace("WARPS", str(warps))
                entries.append(Entry(name, task, source, "triton"))
    return entries
