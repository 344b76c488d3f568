"""Sums, maxima and minima of elements or rows that go to the same place, and how often each value occurs in a row.

Torch and the compiler do one atomic operation per element. Where neighbors go to the same place, as in segments, a program
combines them first and does one for each run. Results are correct for any order of the places; places out of range are skipped.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated

#: Places that one program counts in registers.
MOST_BINS = 4096


@triton.jit
def _joined_sum(first, value, next_first, next_value):
    return first | next_first, tl.where(next_first != 0, next_value, value + next_value)


@triton.jit
def _joined_max(first, value, next_first, next_value):
    both = tl.maximum(value, next_value, propagate_nan=tl.PropagateNan.ALL)
    return first | next_first, tl.where(next_first != 0, next_value, both)


@triton.jit
def _joined_min(first, value, next_first, next_value):
    both = tl.minimum(value, next_value, propagate_nan=tl.PropagateNan.ALL)
    return first | next_first, tl.where(next_first != 0, next_value, both)


@triton.jit
def _put(to, value, there, KIND: tl.constexpr):
    """Combines a value with what is in memory. Of NaNs only the positive one is larger and smaller than all numbers there."""
    if KIND == "sum":
        tl.atomic_add(to, value, mask=there, sem="relaxed")
    else:
        is_nan = value != value
        if KIND == "max":
            tl.atomic_max(to, tl.where(is_nan, _nan(value, 0x7FC00000), value), mask=there, sem="relaxed")
        else:
            tl.atomic_min(to, tl.where(is_nan, _nan(value, -4194304), value), mask=there, sem="relaxed")


@triton.jit
def _nan(value, BITS: tl.constexpr):
    if value.dtype.is_floating():
        return tl.full(value.shape, BITS, dtype=tl.int32).to(tl.float32, bitcast=True)
    return value


@triton.jit(do_not_specialize=["count", "places"])
def _scatter_elements(x_ptr, index_ptr, out_ptr, count, places, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    place = tl.load(index_ptr + at, mask=there, other=-1)
    before = tl.load(index_ptr + at - 1, mask=there & (tl.arange(0, BLOCK) > 0), other=-1)
    after = tl.load(index_ptr + at + 1, mask=(at + 1 < count) & (tl.arange(0, BLOCK) < BLOCK - 1), other=-1)
    value = tl.load(x_ptr + at, mask=there, other=0)
    first = (place != before).to(tl.int32)
    if KIND == "sum":
        _, total = tl.associative_scan((first, value), 0, _joined_sum)
    elif KIND == "max":
        _, total = tl.associative_scan((first, value), 0, _joined_max)
    else:
        _, total = tl.associative_scan((first, value), 0, _joined_min)
    is_last = (place != after) & (place >= 0) & (place < places)
    _put(out_ptr + place, total, is_last, KIND)


@triton.jit(do_not_specialize=["count", "places"])
def _scatter_rows(
    x_ptr, index_ptr, out_ptr, count, places, cols, KIND: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    place = tl.load(index_ptr + first)
    total = tl.load(x_ptr + first * cols + col, mask=col < cols, other=0)
    for row in range(first + 1, tl.minimum(first + ROWS, count)):
        now = tl.load(index_ptr + row)
        value = tl.load(x_ptr + row * cols + col, mask=col < cols, other=0)
        is_next = now != place
        _put(
            out_ptr + place * cols + col,
            total,
            (col < cols) & is_next & (place >= 0) & (place < places),
            KIND,
        )
        if KIND == "sum":
            both = total + value
        elif KIND == "max":
            both = tl.maximum(total, value, propagate_nan=tl.PropagateNan.ALL)
        else:
            both = tl.minimum(total, value, propagate_nan=tl.PropagateNan.ALL)
        total = tl.where(is_next, value, both)
        place = now
    _put(out_ptr + place * cols + col, total, (col < cols) & (place >= 0) & (place < places), KIND)


@triton.jit(do_not_specialize=["cols"])
def _count(index_ptr, out_ptr, cols, bins, PART: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Adds how often each value occurs in a part of a row to out (rows, bins)."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BINS,), dtype=tl.int32)
    for first in range(tl.program_id(1) * PART, tl.minimum((tl.program_id(1) + 1) * PART, cols), BLOCK):
        col = first + tl.arange(0, BLOCK)
        place = tl.load(index_ptr + row * cols + col, mask=col < cols, other=-1)
        total += tl.histogram(place.to(tl.int32), BINS, mask=(place >= 0) & (place < bins))
    bin_ = tl.arange(0, BINS)
    to = out_ptr + row * bins + bin_
    tl.atomic_add(to, total.to(out_ptr.dtype.element_ty), mask=(bin_ < bins) & (total > 0), sem="relaxed")


@repeated
def scatter(out, index, x, kind):
    """Combine x (count, or count and cols) with out (places, or places and cols) at index (count); in place.

    Args:
        kind: "sum", "max" or "min". NaNs of out are kept as those that `_put` writes, see there.
    """
    if kind != "sum" and x.is_floating_point():
        nan = float("nan") if kind == "max" else -float("nan")
        out.copy_(torch.where(out.isnan(), nan, out))
    count = x.shape[0]
    if x.dim() == 1:
        launch(
            _scatter_elements, (-(-count // 2048),), (x, index, out), (count, out.shape[0]), KIND=kind, BLOCK=2048, num_warps=8
        )  # fmt: skip
    else:
        cols = x.shape[1]
        tile = min(256, triton.next_power_of_2(cols))
        rows = max(8, min(64, count * -(-cols // tile) // 8192))
        launch(
            _scatter_rows, (-(-count // rows), -(-cols // tile)), (x, index, out), (count, out.shape[0], cols),
            KIND=kind, ROWS=rows, COLS=tile, num_warps=max(1, tile // 128),
        )  # fmt: skip
    return out


def scatter_applies(out, index, x):
    """Whether `scatter` can compute with these."""
    dtypes = (torch.float32, torch.int32, torch.int64)
    return (
        x.is_cuda and x.dtype == out.dtype and x.dtype in dtypes and index.dtype == torch.int64 and x.numel() > 0 and out.numel() > 0
        and index.shape == x.shape[:1] and all(one.is_contiguous() for one in (out, index, x)) and x.dim() <= 2 and (x.dim() == 1 or x.shape[1] <= 256 * 65535)
    )  # fmt: skip


@repeated
def count_values(out, index):
    """Add to out (..., bins) how often each value occurs in a row of index (..., cols); in place."""
    cols, bins = index.shape[-1], out.shape[-1]
    rows = index.numel() // cols
    part = max(4096, triton.cdiv(cols * rows, 4096 * 1024) * 1024)
    launch(
        _count, (rows, -(-cols // part)), (index, out), (cols, bins),
        PART=part, BLOCK=1024, BINS=triton.next_power_of_2(bins),
    )  # fmt: skip
    return out


def count_applies(out, index):
    """Whether `count_values` can compute with these."""
    return (
        index.is_cuda and out.dtype in (torch.int32, torch.int64) and index.dtype in (torch.int32, torch.int64)
        and out.is_contiguous() and index.is_contiguous() and index.numel() > 0 and 0 < out.shape[-1] <= MOST_BINS
        and index.shape[-1] < 1 << 30
    )  # fmt: skip
