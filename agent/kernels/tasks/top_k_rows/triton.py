"""The k largest by a running list: each tile is compared with the smallest of the list, and few tiles have something to add.

An element becomes a number of 64 bits, its value in an order of integers above its place counted from the end, so that
of equal elements the first is the larger number. Rows are split among programs where there are few of them; a second
launch then joins the lists.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROGRAMS = 264  # two for each multiprocessor of a large GPU
LOWEST = -(2**63)


@triton.jit
def _write(best, x_ptr, value_ptr, index_ptr, row, cols, k, LIST: tl.constexpr):
    rank = tl.arange(0, LIST)[None, :]
    place = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    value = tl.load(x_ptr + row * cols + place, mask=rank < k)
    tl.store(value_ptr + row * k + rank, value, mask=rank < k)
    tl.store(index_ptr + row * k + rank, place, mask=rank < k)


@triton.jit
def _select(
    x_ptr, value_ptr, index_ptr, list_ptr, cols, k, chunk, lists,
    LOWEST: tl.constexpr, LIST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * chunk
    end = tl.minimum(begin + chunk, cols)
    best = tl.full((1, LIST), LOWEST, tl.int64)
    smallest = tl.min(best)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + row * cols + at, mask=at < end, other=0.0).to(tl.float32)
        # Both zeros are equal, and what is no number comes first, as in torch's sort.
        bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
        order = tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
        key = (order.to(tl.int64) << 32) | (0xFFFFFFFF - at.to(tl.int64))
        key = tl.where(at < end, key, LOWEST)
        if tl.max(key) > smallest:
            both = tl.join(best, tl.topk(key, LIST))
            best = tl.topk(tl.reshape(both, (1, 2 * LIST)), LIST)
            smallest = tl.min(best)
    if lists == 1:
        _write(best, x_ptr, value_ptr, index_ptr, row, cols, k, LIST)
    else:
        list_ptr += (row * lists + tl.program_id(1)) * LIST
        tl.store(list_ptr + tl.arange(0, LIST)[None, :], best)


@triton.jit
def _join(
    x_ptr, value_ptr, index_ptr, list_ptr, cols, k, lists,
    LOWEST: tl.constexpr, LIST: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, ALL)[None, :]
    keys = tl.load(list_ptr + row * lists * LIST + at, mask=at < lists * LIST, other=LOWEST)
    _write(tl.topk(keys, LIST), x_ptr, value_ptr, index_ptr, row, cols, k, LIST)


class ModelNew(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        rows, cols = x.shape
        k = min(self.k, cols)
        values = torch.empty(rows, k, dtype=x.dtype, device=x.device)
        index = torch.empty(rows, k, dtype=torch.int64, device=x.device)
        size = max(triton.next_power_of_2(k), 2)
        block = max(min(triton.next_power_of_2(cols), 1024), 2 * size)
        lists = max(1, min(PROGRAMS // rows, triton.cdiv(cols, 4 * block), 16))
        chunk = triton.cdiv(triton.cdiv(cols, lists), block) * block
        lists = triton.cdiv(cols, chunk)
        kept = torch.empty(rows * lists * size if lists > 1 else 1, dtype=torch.int64, device=x.device)
        _select[(rows, lists)](
            x, values, index, kept, cols, k, chunk, lists,
            LOWEST=LOWEST, LIST=size, BLOCK=block, num_warps=4,
        )  # fmt: skip
        if lists > 1:
            every = triton.next_power_of_2(lists * size)
            _join[(rows,)](
                x, values, index, kept, cols, k, lists, LOWEST=LOWEST, LIST=size, ALL=every, num_warps=4
            )
        return values, index
