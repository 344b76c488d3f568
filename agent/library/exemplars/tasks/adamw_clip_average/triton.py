"""The whole step in three launches over a table of addresses: partial sums of squares, the factor, the update.

The norm never reaches the host, and every number is read and written once, but for the gradients, which the norm needs
first. The table travels to the GPU once a call, from pinned memory and without waiting. Where a CUDA graph is recorded, such
a copy would read that memory again at each replay, when it may hold something else: there a kernel writes the table
from its arguments, which are part of the graph.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

RATE, DECAY, BETA1, BETA2, AVERAGE, EPS, STEP = 0.05, 0.1, 0.9, 0.95, 0.99, 1e-8, 20
ENTRIES = 16  # of the table, per launch of the kernel that writes it
BLOCK = 4096

Tensors = list[torch.Tensor]


@triton.jit(do_not_specialize=[f"e{entry}" for entry in range(ENTRIES)])
def _write_entries(
    table_ptr,
    e0: tl.int64, e1: tl.int64, e2: tl.int64, e3: tl.int64, e4: tl.int64, e5: tl.int64, e6: tl.int64, e7: tl.int64,
    e8: tl.int64, e9: tl.int64, e10: tl.int64, e11: tl.int64, e12: tl.int64, e13: tl.int64, e14: tl.int64, e15: tl.int64,
):  # fmt: skip
    tl.store(table_ptr, e0)
    tl.store(table_ptr + 1, e1)
    tl.store(table_ptr + 2, e2)
    tl.store(table_ptr + 3, e3)
    tl.store(table_ptr + 4, e4)
    tl.store(table_ptr + 5, e5)
    tl.store(table_ptr + 6, e6)
    tl.store(table_ptr + 7, e7)
    tl.store(table_ptr + 8, e8)
    tl.store(table_ptr + 9, e9)
    tl.store(table_ptr + 10, e10)
    tl.store(table_ptr + 11, e11)
    tl.store(table_ptr + 12, e12)
    tl.store(table_ptr + 13, e13)
    tl.store(table_ptr + 14, e14)
    tl.store(table_ptr + 15, e15)


@triton.jit
def _size(table_ptr, ALIGNED: tl.constexpr):
    """Of a tensor. Vectors are loaded only where sizes are known to be multiples of 4 and addresses of 16."""
    size = tl.load(table_ptr)
    if ALIGNED:
        size = tl.multiple_of(size, 4)
    return size


@triton.jit
def _address(table_ptr, ALIGNED: tl.constexpr):
    """Of float32 numbers."""
    address = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def _squares(table_ptr, part_ptr, count, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    chunk, tensor = tl.program_id(0), tl.program_id(1)
    size = _size(table_ptr + 9 * count + tensor, ALIGNED)
    at = chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gradient = tl.load(_address(table_ptr + count + tensor, ALIGNED) + at, mask=at < size, other=0.0)
    tl.store(part_ptr + tensor * tl.num_programs(0) + chunk, tl.sum(gradient * gradient, 0))


@triton.jit
def _factor(part_ptr, factor_ptr, parts, most, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(part_ptr + at, mask=at < parts, other=0.0)
    tl.store(factor_ptr, tl.minimum(most / tl.sqrt(tl.sum(total, 0)), 1.0))


@triton.jit
def _update(
    table_ptr, factor_ptr, count,
    KEPT: tl.constexpr, RATE: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, SECOND_SCALE: tl.constexpr,
    AVERAGE: tl.constexpr, EPS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = table_ptr + tl.program_id(1)
    size = _size(entry + 9 * count, ALIGNED)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start < size:
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        weight = tl.load(_address(entry, ALIGNED) + at, mask=inside)
        gradient = tl.load(_address(entry + count, ALIGNED) + at, mask=inside) * tl.load(factor_ptr)
        first = tl.load(_address(entry + 2 * count, ALIGNED) + at, mask=inside)
        second = tl.load(_address(entry + 3 * count, ALIGNED) + at, mask=inside)
        average = tl.load(_address(entry + 4 * count, ALIGNED) + at, mask=inside)
        first += (1.0 - BETA1) * (gradient - first)
        second = second * BETA2 + (1.0 - BETA2) * gradient * gradient
        weight = weight * KEPT - RATE * first / (tl.sqrt(second * SECOND_SCALE) + EPS)
        average += (1.0 - AVERAGE) * (weight - average)
        tl.store(_address(entry + 5 * count, ALIGNED) + at, weight, mask=inside)
        tl.store(_address(entry + 6 * count, ALIGNED) + at, first, mask=inside)
        tl.store(_address(entry + 7 * count, ALIGNED) + at, second, mask=inside)
        tl.store(_address(entry + 8 * count, ALIGNED) + at, average, mask=inside)


def _table(entries: list[int], device: torch.device) -> torch.Tensor:
    """The numbers, of 64 bits each, on the device; what is beyond them in the tensor is never read."""
    if device.type != "cuda":
        return torch.tensor(entries, dtype=torch.int64, device=device)
    if not torch.cuda.is_current_stream_capturing():
        pinned = torch.tensor(entries, dtype=torch.int64, pin_memory=True)
        return pinned.to(device, non_blocking=True)
    table = torch.empty(-(-len(entries) // ENTRIES) * ENTRIES, dtype=torch.int64, device=device)
    padded = entries + [0] * (table.numel() - len(entries))
    for start in range(0, len(padded), ENTRIES):
        _write_entries[(1,)](table[start:], *padded[start : start + ENTRIES], num_warps=1)
    return table


class ModelNew(nn.Module):
    def forward(
        self, weights: Tensors, gradients: Tensors, first: Tensors, second: Tensors, averages: Tensors
    ) -> tuple[Tensors, Tensors, Tensors, Tensors]:
        lists = [
            [tensor.contiguous() for tensor in tensors]
            for tensors in (weights, gradients, first, second, averages)
        ]
        weights, device = lists[0], lists[0][0].device
        if any(tensor.dtype is not torch.float32 for tensors in lists for tensor in tensors):
            raise TypeError("all tensors must be of float32")
        results = [[torch.empty_like(tensor) for tensor in weights] for _ in range(4)]
        addresses = [tensor.data_ptr() for tensors in (*lists, *results) for tensor in tensors]
        sizes = [tensor.numel() for tensor in weights]
        table = _table(addresses + sizes, device)
        count = len(weights)
        grid = (triton.cdiv(max(sizes), BLOCK), count)
        sums = torch.empty(grid[0] * count + 1, dtype=torch.float32, device=device)
        factor = sums[-1:]
        aligned = all(address % 16 == 0 for address in addresses) and all(size % 4 == 0 for size in sizes)
        tile = {"ALIGNED": aligned, "BLOCK": BLOCK, "num_warps": 8}
        _squares[grid](table, sums, count, **tile)
        most = 0.8 * sum(sizes) ** 0.5
        _factor[(1,)](sums, factor, grid[0] * count, most, BLOCK=4096, num_warps=8)
        _update[grid](
            table, factor, count, KEPT=1 - RATE * DECAY, RATE=RATE / (1 - BETA1**STEP), BETA1=BETA1, BETA2=BETA2,
            SECOND_SCALE=1 / (1 - BETA2**STEP), AVERAGE=AVERAGE, EPS=EPS, **tile,
        )  # fmt: skip
        return tuple(results)
