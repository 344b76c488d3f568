"""Order statistics of rows: the k largest or smallest elements with their places, and the element of a rank.

Rows stay in registers as integers that are ordered like their elements, NaN above all others. A few largest elements are taken one
by one; an element of any rank is found bit by bit, by counting what is smaller. More of the largest, or those of longer rows, are
what is left of pieces of the row when all below their element of that rank is dropped, and are sorted.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated

MOST_COLS = 32768  # of a row that one program holds
ONE_BY_ONE = 16  # elements; with more, pieces are sorted
SORTED_PIECE = 16384
NAN = tl.constexpr(0x7FFFFFFE)
LOWEST = tl.constexpr(-0x80000000)  # below every element, either way


@triton.jit
def _ordered(x):
    """Integers in the order of float32 elements; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, NAN, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _element(key):
    """The inverse of `_ordered`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _keys(x_ptr, row, col, rows, cols, LARGEST: tl.constexpr):
    """Keys of which the largest comes first; LOWEST where no element is."""
    there = (row < rows)[:, None] & (col < cols)[None, :]
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=there, other=0.0).to(tl.float32)
    key = _ordered(x)
    if not LARGEST:
        key = ~key
    return tl.where(there, key, LOWEST)


@triton.jit
def _of_rank(key, rank, ROWS: tl.constexpr):
    """The key (unsigned) of a rank in each row, from 0 for the smallest, bit by bit: by counting what is smaller."""
    found = tl.zeros((ROWS,), dtype=tl.uint32)
    for step in tl.static_range(32):
        trial = found | (1 << (31 - step))
        smaller = tl.sum((key < trial[:, None]).to(tl.int32), axis=1)
        found = tl.where(smaller <= rank, trial, found)
    return found


@triton.jit(do_not_specialize=["rows", "cols", "taken"])
def _top(
    x_ptr,
    value_ptr,
    place_ptr,
    rows,
    cols,
    taken,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The first elements of some rows by size, and where they are: the first of equals first."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    key = _keys(x_ptr, row, col, rows, cols, LARGEST)
    for place in range(taken):
        best = tl.max(key, axis=1)
        at = tl.min(tl.where(key == best[:, None], col[None, :], COLS), axis=1)
        value = tl.load(x_ptr + row * cols + at, mask=row < rows)  # again: keys do not tell -0
        tl.store(value_ptr + row * taken + place, value, mask=row < rows)
        tl.store(place_ptr + row * taken + place, at.to(tl.int64), mask=row < rows)
        key = tl.where(col[None, :] == at[:, None], LOWEST, key)


@triton.jit(do_not_specialize=["rows", "cols", "rank"])
def _ranked(x_ptr, out_ptr, rows, cols, rank, NAN_WINS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The element of a rank of some rows, from 0 for the smallest; or NaN where NAN_WINS and a row has one."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    there = (row < rows)[:, None] & (col < cols)[None, :]
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=there, other=0.0).to(tl.float32)
    # Unsigned order: the highest bit says whether the element is positive.
    key = (tl.where(there, _ordered(x), 0x7FFFFFFF) ^ LOWEST).to(tl.uint32, bitcast=True)
    found = _of_rank(key, rank, ROWS)
    value = _element(found.to(tl.int32, bitcast=True) ^ LOWEST)
    if NAN_WINS:
        value = tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), value)
    tl.store(out_ptr + row, value, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "cols", "taken"])
def _leaders(x_ptr, key_ptr, col_ptr, rows, cols, taken, LARGEST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
             TAKEN: tl.constexpr):  # fmt: skip
    """The first elements by size of a piece of some rows, in the order of the row: their keys and columns, TAKEN places for each."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    key = _keys(x_ptr, row, col, rows, cols, LARGEST)
    unsigned = (key ^ LOWEST).to(tl.uint32, bitcast=True)
    last = _of_rank(unsigned, COLS - taken, ROWS)
    above, equal = unsigned > last[:, None], unsigned == last[:, None]
    missing = taken - tl.sum(above.to(tl.int32), axis=1)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=1) <= missing[:, None]))
    place = tl.cumsum(chosen.to(tl.int32), axis=1) - 1
    to = (row[:, None] * tl.num_programs(1) + tl.program_id(1)) * TAKEN + place
    chosen &= (row < rows)[:, None]
    tl.store(key_ptr + to, key, mask=chosen)
    tl.store(col_ptr + to, tl.broadcast_to(col[None, :], (ROWS, COLS)), mask=chosen)


@triton.jit(do_not_specialize=["cols", "taken", "pieces"])
def _best(
    x_ptr, key_ptr, col_ptr, value_ptr, place_ptr, cols, taken, pieces, TAKEN: tl.constexpr, ALL: tl.constexpr
):
    """The first elements of a row by size, and where they are, from its pieces' first ones."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, ALL)
    there = (at < pieces * TAKEN) & (at % TAKEN < taken)
    key = tl.load(key_ptr + row * pieces * TAKEN + at, mask=there, other=LOWEST)
    col = tl.load(col_ptr + row * pieces * TAKEN + at, mask=there, other=0x7FFFFFFF)
    both = (key.to(tl.int64) << 32) | (0x7FFFFFFF - col).to(tl.int64)  # the first of equals first
    col = 0x7FFFFFFF - (tl.sort(both, descending=True) & 0xFFFFFFFF)
    to = row * taken + at
    value = tl.load(x_ptr + row * cols + col, mask=at < taken)
    tl.store(value_ptr + to, value, mask=at < taken)
    tl.store(place_ptr + to, col, mask=at < taken)


def ranks_apply(x):
    """Whether `top` can look at the rows along the last axis of x; `ranked` at those of up to MOST_COLS."""
    return (
        x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and x.is_contiguous()
        and x.numel() > 0 and 0 < x.shape[-1] <= 1 << 20
    )  # fmt: skip


def _grid(x, most=MOST_COLS):
    """How many rows, and the tile of a program: short rows share one, long ones have up to 16 warps."""
    cols = x.shape[-1]
    rows, width = x.numel() // cols, min(most, triton.next_power_of_2(cols))
    per = max(1, 2048 // width)
    options = {"ROWS": per, "COLS": width, "num_warps": max(4, min(16, width // 1024))}
    return rows, (-(-rows // per), -(-cols // width)), options


@repeated
def top(x, taken, largest):
    """Values, of x's dtype, and places (int64) of the largest or smallest elements along the last axis; ``taken`` of each row."""
    cols = x.shape[-1]
    values = torch.empty((*x.shape[:-1], taken), dtype=x.dtype, device=x.device)
    places = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    if taken <= ONE_BY_ONE and cols <= MOST_COLS:
        rows, grid, options = _grid(x)
        launch(_top, grid, (x, values, places), (rows, cols, taken), LARGEST=largest, **options)
        return values, places
    rows, grid, options = _grid(x, max(SORTED_PIECE, triton.next_power_of_2(taken)))
    pieces, padded = grid[1], triton.next_power_of_2(taken)
    keys, columns = torch.empty((2, rows, pieces, padded), dtype=torch.int32, device=x.device)
    launch(_leaders, grid, (x, keys, columns), (rows, cols, taken), LARGEST=largest, TAKEN=padded, **options)
    launch(
        _best, (rows,), (x, keys, columns, values, places), (cols, taken, pieces),
        TAKEN=padded, ALL=triton.next_power_of_2(pieces) * padded, num_warps=4,
    )  # fmt: skip
    return values, places


@repeated
def ranked(x, rank, nan_wins):
    """The element of a rank (0 is the smallest, NaN the largest) along the last axis, of x's dtype.

    Args:
        nan_wins: NaN for rows that have one.
    """
    rows, grid, options = _grid(x)
    out = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    launch(_ranked, grid, (x, out), (rows, x.shape[-1], rank), NAN_WINS=nan_wins, **options)
    return out
