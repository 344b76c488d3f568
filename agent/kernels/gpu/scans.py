"""The running logarithm of a sum of exponentials along rows, in one pass.

What has been summed is a pair: the maximum, and the sum of the exponentials of what lies below it. A part of a row is scanned at a
time, and parts follow one another. Where the maximum hardly rises within a part, exponentials are taken below the part's own
maximum and summed; where it rises by so much that the first results would lose digits, or is infinite, pairs are joined, five times slower.
"""

import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch

PART = 4096  # of a row that is scanned at a time
MOST_RISE = tl.constexpr(16.0)  # results at its beginning get the rounding of its maximum: at most 1e-6


@triton.jit
def _joined_sums(most, total, more, added):
    """The sum of two sums of exponentials, each given as its maximum and what it is of the maximum's exponential."""
    larger = tl.maximum(most, more, propagate_nan=tl.PropagateNan.ALL)
    # Equal ones may be infinite.
    total *= tl.where(most == larger, 1.0, tl.exp(most - larger))
    added *= tl.where(more == larger, 1.0, tl.exp(more - larger))
    return larger, total + added


@triton.jit(do_not_specialize=["cols"])
def _running_logsumexp(x_ptr, out_ptr, cols, PART: tl.constexpr):
    """One row."""
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


def running_logsumexp(x, out):
    """out = logcumsumexp(x) along the last axis; float32, contiguous."""
    cols = x.shape[-1]
    part = min(PART, max(128, triton.next_power_of_2(cols)))
    launch(
        _running_logsumexp, (x.numel() // cols,), (x, out), (cols,), PART=part, num_warps=max(1, part // 512)
    )
    return out
