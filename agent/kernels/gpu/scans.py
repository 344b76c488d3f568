"""Scans in one pass: of states that a given function joins, and the running logarithm of a sum of exponentials along rows.

Of the latter, what has been summed is a pair: the maximum, and the sum of the exponentials of what lies below it. A part of a row is scanned at a
time, and parts follow one another. Where the maximum hardly rises within a part, exponentials are taken below the part's own
maximum and summed; where it rises by so much that the first results would lose digits, or is infinite, pairs are joined, five times slower.
"""

import math

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.products import processors

PART = 2048  # of a row that is scanned at a time
MOST_RISE = tl.constexpr(16.0)  # results at its beginning get the rounding of its maximum: at most 1e-6


def unit(length):
    """What a length is a multiple of: without that a thread loads no neighbors, and a scan is one of shuffles."""
    return next(one for one in (16, 4, 1) if length % one == 0)


@triton.jit
def _joined_sums(most, total, more, added):
    """The sum of two sums of exponentials, each given as its maximum and what it is of the maximum's exponential."""
    larger = tl.maximum(most, more, propagate_nan=tl.PropagateNan.ALL)
    # Equal ones may be infinite.
    total *= tl.where(most == larger, 1.0, tl.exp(most - larger))
    added *= tl.where(more == larger, 1.0, tl.exp(more - larger))
    return larger, total + added


@triton.jit(do_not_specialize=["units"])
def _running_logsumexp(x_ptr, out_ptr, units, PART: tl.constexpr, UNIT: tl.constexpr):
    """One row of UNIT times ``units`` columns, see `_scan`."""
    cols = units * UNIT
    first = tl.program_id(0).to(tl.int64) * cols
    most_before, total_before = float("-inf"), 0.0
    for start in range(0, cols, PART):
        col = start + tl.arange(0, PART)
        x = tl.load(x_ptr + first + col, mask=col < cols, other=float("-inf"))
        here = tl.max(x, axis=0)
        start_at = tl.maximum(most_before, tl.max(tl.where(col == start, x, float("-inf")), axis=0))
        largest = tl.maximum(most_before, here)
        has_nan = tl.max((x != x).to(tl.int32), axis=0)
        is_finite = (has_nan == 0) & (largest < float("inf")) & (largest > float("-inf"))
        if is_finite & (start_at >= largest - MOST_RISE):
            total = tl.cumsum(tl.exp(x - largest), axis=0) + total_before * tl.exp(most_before - largest)
            tl.store(out_ptr + first + col, largest + tl.log(total), mask=col < cols)
            total_before = tl.max(total, axis=0)
            most_before = largest
        else:
            most, total = tl.associative_scan((x, tl.full((PART,), 1.0, dtype=tl.float32)), 0, _joined_sums)
            most, total = _joined_sums(most_before, total_before, most, total)
            tl.store(out_ptr + first + col, most + tl.log(total), mask=col < cols)
            # A sum with one term, so NaN and Inf stay what they are.
            is_last = tl.arange(0, PART) == PART - 1
            most_before = tl.sum(tl.where(is_last, most, 0.0), axis=0)
            total_before = tl.sum(tl.where(is_last, total, 0.0), axis=0)


@repeated
def running_logsumexp(x, out):
    """out = logcumsumexp(x) along the last axis; float32, contiguous."""
    cols = x.shape[-1]
    part = min(PART, max(128, triton.next_power_of_2(cols)))
    launch(
        _running_logsumexp,
        (x.numel() // cols,),
        (x, out),
        (cols // unit(cols),),
        PART=part,
        UNIT=unit(cols),
        num_warps=max(1, part // 512),
    )
    return out


@triton.jit(do_not_specialize=["lanes", "units", "inner", "tiles", "chunks"])
def _scan(x_ptr, y_ptr, ends_ptr, out_ptr, lanes, units, inner, tiles, chunks, FIRST: tl.constexpr, JOIN: tl.constexpr, ALONG: tl.constexpr,
          COUNT: tl.constexpr, Y_IS_FLAG: tl.constexpr, ENDS: tl.constexpr, AXIS: tl.constexpr, TIME: tl.constexpr, LANES: tl.constexpr,
          UNIT: tl.constexpr):  # fmt: skip
    """One chunk of some lanes, after what the ends of the chunks before it say; with ENDS, how it ends on its own instead.

    A tile is (TIME, LANES) if AXIS is 0, where neighbors in memory are of different lanes, else (LANES, TIME). A lane has UNIT
    times ``units`` steps, a chunk TIME times ``tiles``, so that the compiler knows what may be loaded at once.
    """
    length = units * UNIT
    number = tl.program_id(1)
    if AXIS == 0:
        lane, step = tl.arange(0, LANES)[None, :], tl.arange(0, TIME)[:, None]
        columns = tl.cdiv(inner, LANES)
        outer = tl.program_id(0) // columns
        lane += tl.program_id(0) % columns * LANES
        in_lanes = lane < inner
        base = outer.to(tl.int64) * length * inner + lane
        lane += outer * inner
    else:
        lane, step = tl.program_id(0) * LANES + tl.arange(0, LANES)[:, None], tl.arange(0, TIME)[None, :]
        in_lanes = lane < lanes
        base = lane.to(tl.int64) * length
    size: tl.constexpr = (1, LANES) if AXIS == 0 else (LANES, 1)
    x_before, y_before = tl.zeros(size, tl.float32), tl.zeros(size, tl.int32 if Y_IS_FLAG else tl.float32)
    if not ENDS:
        for before in range(number):
            at = ends_ptr + before * lanes + lane
            x = tl.load(at, mask=in_lanes, other=0.0)
            if COUNT == 2:
                y = tl.load(at + chunks * lanes, mask=in_lanes, other=0.0).to(y_before.dtype)
            if before == 0:
                x_before = x
                if COUNT == 2:
                    y_before = y
            else:
                if COUNT == 2:
                    x_before, y_before = JOIN(x_before, y_before, x, y)
                else:
                    x_before = JOIN(x_before, x)
    begin = number * tiles * TIME
    end = tl.minimum(begin + tiles * TIME, length)
    for start in range(begin, end, TIME):
        time = start + step
        inside = (time < end) & in_lanes
        at = base + (time.to(tl.int64) * inner if AXIS == 0 else time)
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        if COUNT == 2:
            y = tl.load(y_ptr + at, mask=inside, other=0)
            if Y_IS_FLAG:
                y = (y != 0).to(tl.int32)
            if FIRST is not None:
                x, y = FIRST(x, y)
            x, y = ALONG(x, y, AXIS)
        else:
            if FIRST is not None:
                x = FIRST(x)
            x = ALONG(x, AXIS)
        if (start > begin) | ((number > 0) & (not ENDS)):
            if COUNT == 2:
                x, y = JOIN(x_before + tl.zeros_like(x), y_before + tl.zeros_like(y), x, y)
            else:
                x = JOIN(x_before + tl.zeros_like(x), x)
        is_last = time == tl.minimum(start + TIME, end) - 1
        x_before = tl.sum(tl.where(is_last, x, 0.0), axis=AXIS, keep_dims=True)
        if COUNT == 2:
            y_before = tl.sum(tl.where(is_last, y, 0), axis=AXIS, keep_dims=True)
        if not ENDS:
            tl.store(out_ptr + at, x, mask=inside)
    if ENDS:
        at = ends_ptr + number * lanes + lane
        tl.store(at, x_before, mask=in_lanes)
        if COUNT == 2:
            tl.store(at + chunks * lanes, y_before.to(tl.float32), mask=in_lanes)


@repeated
def scan(x, y, dim, joins, first, out):
    """out = the first of the states that joining makes of all up to each place along an axis.

    Where there are too few lanes (sequences side by side) for a GPU, each is cut into chunks: a first launch finds how they end.

    Args:
        x, y: the states' (float32; y may be of truth values or None), contiguous and of one shape.
        joins: functions of Triton's: one of a state before and the one behind it, associative; and one that scans a tile by it.
        first: applied to x and y when they are read; may be None.
    """
    length, inner = x.shape[dim], math.prod(x.shape[dim + 1 :])
    lanes = x.numel() // length
    steps = max(triton.next_power_of_2(length), 2)
    if inner == 1:
        time = min(steps, 2048 if unit(length) > 1 else 1024)
        across = min(max(1, 1024 // time), triton.next_power_of_2(lanes))
        columns, of_a_warp = triton.cdiv(lanes, across), 512 if unit(length) > 1 else 256
    else:
        across = min(triton.next_power_of_2(inner), 32)
        time = min(2048 // across, steps)
        columns, of_a_warp = lanes // inner * triton.cdiv(inner, across), 512
    chunks = max(1, min(4 * processors(x.device) // columns, triton.cdiv(length, time), 64))
    tiles = triton.cdiv(triton.cdiv(length, chunks), time)
    chunks = triton.cdiv(length, tiles * time)
    ends = x.new_empty((2, chunks, lanes)) if chunks > 1 else out
    is_flag = y is not None and y.dtype == torch.bool
    tensors = x, x if y is None else y.view(torch.uint8) if is_flag else y, ends, out
    for of_ends in (True, False) if chunks > 1 else (False,):
        launch(
            _scan, (columns, chunks), tensors, (lanes, length // unit(length), inner, tiles, chunks),
            FIRST=first, JOIN=joins[0], ALONG=joins[1], COUNT=1 if y is None else 2, Y_IS_FLAG=is_flag, ENDS=of_ends, AXIS=int(inner == 1),
            TIME=time, LANES=across, UNIT=unit(length), num_warps=min(max(time * across // of_a_warp, 1), 8),
        )  # fmt: skip
    return out
