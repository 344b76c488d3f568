"""Sums of the rows of a table that belong to one bag, such as the entries of a row of a sparse matrix; one pass, no atomic operations."""

import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated


@triton.jit(do_not_specialize=["bags", "count", "entries"])
def _sum_bags(table_ptr, ids_ptr, offsets_ptr, weight_ptr, out_ptr, bags, count, entries, width, table_row,
              WEIGHTED: tl.constexpr, LAST: tl.constexpr, WRAPS: tl.constexpr, PART: tl.constexpr,
              COLS: tl.constexpr):  # fmt: skip
    """Some columns of one bag; NaN where an index is of no row."""
    bag = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    begin = tl.maximum(tl.load(offsets_ptr + bag), 0)
    end = tl.load(offsets_ptr + bag + 1, mask=LAST | (bag + 1 < bags), other=count)
    end = tl.minimum(end, count)
    total = tl.zeros((PART, COLS), dtype=tl.float32)
    for first in range(begin, end, PART):
        at = first + tl.arange(0, PART)
        which = tl.load(ids_ptr + at, mask=at < end, other=0).to(tl.int64)
        if WRAPS:
            which = tl.where(which < 0, which + entries, which)
        is_one = (which >= 0) & (which < entries)
        inside = (at < end)[:, None] & (col < width)[None, :]
        x = tl.load(
            table_ptr + which[:, None] * table_row + col[None, :], mask=inside & is_one[:, None], other=0.0
        )
        if WEIGHTED:
            x *= tl.load(weight_ptr + at, mask=at < end, other=0.0)[:, None]
        total += tl.where(is_one[:, None], x, float("nan"))
    tl.store(out_ptr + bag * width + col, tl.sum(total, axis=0), mask=col < width)


@repeated
def sum_bags(table, ids, offsets, weight, last, wraps, out):
    """out[i] = the sum of weight[j] * table[ids[j]] for j from offsets[i] to offsets[i + 1].

    Args:
        table (entries, width): float32, elements of a row next to one another.
        ids, weight (count,): weight may be None.
        offsets: (bags + 1,) with ``last``, else (bags,), and the last bag ends with the ids.
        wraps: whether negative ids count from the end.
    """
    bags, width = out.shape
    # Columns next to one another of all rows of a table stay in the cache, while all bags need them.
    cols = min(triton.next_power_of_2(width), 64)
    launch(
        _sum_bags, (bags, triton.cdiv(width, cols)),
        (table, ids, offsets, table if weight is None else weight, out), (bags, ids.shape[0], table.shape[0], width, table.stride(0)),
        WEIGHTED=weight is not None, LAST=last, WRAPS=wraps, PART=8, COLS=cols, num_warps=1,
    )  # fmt: skip
    return out
