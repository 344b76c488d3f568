"""Softmax and log-softmax of long rows: each row is read once and written once.

A row is cut into pieces that programs hold in registers. They exchange the pieces' maxima and sums through memory and wait for one
another. Programs start in order, so the pieces of the first unfinished row are running or come next (a counter that makes sure of it took up to
a third of the time). The wait is bounded: after it, since other kernels may hold the rest of the device, a program reads the whole row.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import processors

PIECE = 32768  # elements of a row that a program holds
MOST_PIECES = 32
MOST_LOOKS = 20_000  # about 20 ms


@triton.jit(do_not_specialize=["cols", "pieces"])
def _softmax(x_ptr, out_ptr, count_ptr, largest_ptr, sum_ptr, cols, pieces, LOG: tl.constexpr, PIECE: tl.constexpr,
             PIECES: tl.constexpr, WIDE: tl.constexpr, MOST_LOOKS: tl.constexpr):  # fmt: skip
    """One piece of one row; with several pieces count (rows,) int32 is zero, largest and sum are (rows * pieces,) float32."""
    if WIDE:  # a thread loads four neighbors at once
        cols = cols // 4 * 4
    row, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    at = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=float("-inf"), eviction_policy="evict_first")
    x = x.to(tl.float32)
    largest = tl.max(x, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    own = largest
    # Computed once: the special-function unit takes a quarter of a warp at a time.
    weight = tl.exp(x - base)
    total = tl.sum(weight, axis=0)
    if PIECES > 1:
        tl.store(largest_ptr + row * pieces + piece, largest)
        tl.store(sum_ptr + row * pieces + piece, total)
        tl.debug_barrier()
        arrived = tl.atomic_add(count_ptr + row, 1, sem="acq_rel") + 1
        looks = 0
        while (arrived < pieces) & (looks < MOST_LOOKS):
            arrived = tl.load(count_ptr + row, volatile=True)
            looks += 1
        arrived = tl.atomic_add(count_ptr + row, 0, sem="acquire")
        tl.debug_barrier()
        if arrived >= pieces:
            other = tl.arange(0, PIECES)
            there = other < pieces
            each = tl.load(largest_ptr + row * pieces + other, mask=there, other=float("-inf"), volatile=True)
            sums = tl.load(sum_ptr + row * pieces + other, mask=there, other=0.0, volatile=True)
            largest = tl.max(each, axis=0)
            base = tl.where(largest == float("-inf"), 0.0, largest)
            total = tl.sum(tl.where(each == float("-inf"), 0.0, sums * tl.exp(each - base)), axis=0)
        else:
            step = tl.arange(0, PIECE // 32)
            for from_col in range(0, cols, PIECE // 32):
                part = tl.load(
                    x_ptr + row * cols + from_col + step, mask=from_col + step < cols, other=float("-inf")
                )
                largest = tl.maximum(largest, tl.max(part, axis=0))
            base = tl.where(largest == float("-inf"), 0.0, largest)
            total = 0.0
            for from_col in range(0, cols, PIECE // 32):
                part = tl.load(
                    x_ptr + row * cols + from_col + step, mask=from_col + step < cols, other=float("-inf")
                )
                total += tl.sum(tl.exp(part - base), axis=0)
    if LOG:
        out = x - base - tl.log(total)
    else:
        # A piece of minus infinities alone has no maximum to come from, and weights of zero.
        out = weight * (tl.where(own == float("-inf"), 1.0, tl.exp(own - base)) / total)
    tl.store(out_ptr + row * cols + at, out, mask=at < cols)


def softmax_applies(x):
    """Whether `softmax` can compute along the last axis of x."""
    pieces = -(-x.shape[-1] // PIECE) if x.dim() else 0
    return (
        x.is_cuda and x.dtype == torch.float32 and x.is_contiguous() and 0 < pieces <= MOST_PIECES and x.numel() > 0
        and x.numel() // x.shape[-1] * pieces < 1 << 31
        and pieces <= processors(x.device)
    )  # fmt: skip


@repeated
def softmax(x, out, log):
    """Write softmax, or its logarithm, along the last axis of x to out; both contiguous float32."""
    cols = x.shape[-1]
    rows = x.numel() // cols
    pieces = -(-cols // PIECE)
    count, largest, total = x, x, x  # not read
    if pieces > 1:
        count = torch.zeros(rows, dtype=torch.int32, device=x.device)
        largest, total = torch.empty((2, rows * pieces), dtype=torch.float32, device=x.device)
    piece = min(PIECE, triton.next_power_of_2(cols))
    launch(
        _softmax, (rows * pieces,), (x, out, count, largest, total), (cols, pieces), LOG=log, PIECE=piece, PIECES=triton.next_power_of_2(pieces),
        WIDE=cols % 4 == 0, MOST_LOOKS=MOST_LOOKS, num_warps=max(4, piece // 1024),
    )  # fmt: skip
    return out
