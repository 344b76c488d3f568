"""Order statistics of rows: the k largest or smallest elements with their places, and the element of a rank.

Rows stay in registers as integers that are ordered like their elements, NaN above all others. A few largest elements are taken one
by one; an element of any rank is found bit by bit, by counting what is smaller.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch

MOST_COLS = 32768  # of a row that one program holds
MOST_TAKEN = 16
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
    there = (row < rows)[:, None] & (col < cols)[None, :]
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=there, other=0.0).to(tl.float32)
    key = _ordered(x)
    if not LARGEST:
        key = ~key
    key = tl.where(there, key, LOWEST)
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
    found = tl.zeros((ROWS,), dtype=tl.uint32)
    for step in tl.static_range(32):
        trial = found | (1 << (31 - step))
        smaller = tl.sum((key < trial[:, None]).to(tl.int32), axis=1)
        found = tl.where(smaller <= rank, trial, found)
    value = _element(found.to(tl.int32, bitcast=True) ^ LOWEST)
    if NAN_WINS:
        value = tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), value)
    tl.store(out_ptr + row, value, mask=row < rows)


def ranks_apply(x):
    """Whether `top` and `ranked` can look at the rows along the last axis of x."""
    return (
        x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and x.is_contiguous()
        and x.numel() > 0 and 0 < x.shape[-1] <= MOST_COLS
    )  # fmt: skip


def _grid(x):
    """How many rows, and the tile of a program: short rows share one, long ones have up to 16 warps."""
    cols = x.shape[-1]
    rows, width = x.numel() // cols, triton.next_power_of_2(cols)
    per = max(1, 2048 // width)
    options = {"ROWS": per, "COLS": width, "num_warps": max(4, min(16, width // 1024))}
    return rows, (-(-rows // per),), options


def top(x, taken, largest):
    """Values, of x's dtype, and places (int64) of the largest or smallest elements along the last axis; ``taken`` of each row."""
    rows, grid, options = _grid(x)
    values = torch.empty((*x.shape[:-1], taken), dtype=x.dtype, device=x.device)
    places = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    launch(_top, grid, (x, values, places), (rows, x.shape[-1], taken), LARGEST=largest, **options)
    return values, places


def ranked(x, rank, nan_wins):
    """The element of a rank (0 is the smallest, NaN the largest) along the last axis, of x's dtype.

    Args:
        nan_wins: NaN for rows that have one.
    """
    rows, grid, options = _grid(x)
    out = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    launch(_ranked, grid, (x, out), (rows, x.shape[-1], rank), NAN_WINS=nan_wins, **options)
    return out
