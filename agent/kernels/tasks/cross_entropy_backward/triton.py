"""Loss and gradient of the logits from two numbers a row: nothing as large as the logits is kept between the passes.

Forward splits a row among programs, each of which leaves maximum, scaled sum and plain sum; a short second launch joins
them. Backward reads the logits once more and writes their gradient.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

SMOOTHING = 0.1
IGNORED = -100  # torch's mark of a row without a class
PROGRAMS = 528  # four for each multiprocessor of a large GPU


@triton.jit
def _summarize(x_ptr, part_ptr, classes, chunk, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * chunk
    end = tl.minimum(begin + chunk, classes)
    x_ptr += row * classes
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    powers, plain = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < end, other=float("-inf")).to(tl.float32)
        plain += tl.where(at < end, x, 0.0)
        higher = tl.maximum(largest, x)
        # Differences of infinities would be no numbers.
        base = tl.where(tl.abs(higher) == float("inf"), 0.0, higher)
        powers = powers * tl.exp(largest - base) + tl.exp(x - base)
        largest = higher
    top = tl.max(largest, 0)
    base = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    part_ptr += (row * parts + tl.program_id(1)) * 3
    tl.store(part_ptr, base)
    tl.store(part_ptr + 1, tl.sum(powers * tl.exp(largest - base), 0))
    tl.store(part_ptr + 2, tl.sum(plain, 0))


@triton.jit
def _finish(
    x_ptr, target_ptr, part_ptr, loss_ptr, normalizer_ptr, classes, parts,
    SMOOTHING: tl.constexpr, IGNORED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at = part_ptr + (row * parts + part) * 3
    base = tl.load(at, mask=part < parts, other=float("-inf"))
    powers = tl.load(at + 1, mask=part < parts, other=0.0)
    plain = tl.sum(tl.load(at + 2, mask=part < parts, other=0.0), 0)
    top = tl.max(base, 0)
    powers = tl.sum(powers * tl.exp(base - top), 0)
    # Apart from the maximum: where logits are large, their sum has lost the digits that the gradient is made of.
    rest = tl.log(powers)
    target = tl.load(target_ptr + row)
    counts = target != IGNORED
    chosen = tl.load(x_ptr + row * classes + target, mask=counts, other=0.0).to(tl.float32)
    loss = rest + (1.0 - SMOOTHING) * (top - chosen) + SMOOTHING * (top - plain / classes)
    tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
    tl.store(normalizer_ptr + 2 * row, top)
    tl.store(normalizer_ptr + 2 * row + 1, rest)


@triton.jit
def _gradient(
    x_ptr, target_ptr, normalizer_ptr, dy_ptr, dx_ptr, classes, stride_dy,
    SMOOTHING: tl.constexpr, IGNORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(target_ptr + row)
    dy = tl.where(target != IGNORED, tl.load(dy_ptr + row * stride_dy), 0.0)
    place = row * classes + at
    x = tl.load(x_ptr + place, mask=at < classes, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(normalizer_ptr + 2 * row) - tl.load(normalizer_ptr + 2 * row + 1))
    label = tl.where(at == target, 1.0 - SMOOTHING, 0.0) + SMOOTHING / classes
    tl.store(dx_ptr + place, (dy * (share - label)).to(dx_ptr.dtype.element_ty), mask=at < classes)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits, target = logits.contiguous(), target.contiguous()
        rows, classes = logits.shape
        block = min(triton.next_power_of_2(classes), 2048)
        parts = max(1, min(PROGRAMS // rows, triton.cdiv(classes, 2 * block), 64))
        chunk = triton.cdiv(triton.cdiv(classes, parts), block) * block
        parts = triton.cdiv(classes, chunk)
        kept = torch.empty(rows, parts, 3, dtype=torch.float32, device=logits.device)
        loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
        normalizer = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
        warps = min(max(block // 256, 1), 8)
        _summarize[(rows, parts)](logits, kept, classes, chunk, parts, BLOCK=block, num_warps=warps)
        _finish[(rows,)](
            logits, target, kept, loss, normalizer, classes, parts,
            SMOOTHING=SMOOTHING, IGNORED=IGNORED, PARTS=triton.next_power_of_2(parts), num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(logits, target, normalizer)
        return loss

    @staticmethod
    def backward(ctx, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, target, normalizer = ctx.saved_tensors
        rows, classes = logits.shape
        gradient = torch.empty_like(logits)
        block = min(triton.next_power_of_2(classes), 2048)
        _gradient[(rows, triton.cdiv(classes, block))](
            logits, target, normalizer, dy, gradient, classes, dy.stride(0),
            SMOOTHING=SMOOTHING, IGNORED=IGNORED, BLOCK=block, num_warps=min(max(block // 256, 1), 8),
        )  # fmt: skip
        return gradient, None


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _CrossEntropy.apply(logits, target)
