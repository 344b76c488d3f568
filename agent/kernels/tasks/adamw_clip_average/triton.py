"""The whole step in three launches over a table of addresses: partial sums of squares, the factor, the update.

The norm never reaches the host, and every number is read and written once, but for the gradients, which the norm needs
first. The table is written by a kernel from its arguments: nothing waits for a copy from the host, and recorded in a
CUDA graph it stays what it was.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

RATE, DECAY, BETA1, BETA2, AVERAGE, EPS, STEP = 0.05, 0.1, 0.9, 0.95, 0.99, 1e-8, 20
ENTRIES = 64  # of the table, per launch of the kernel that writes it
BLOCK = 4096

Tensors = list[torch.Tensor]


@triton.jit(do_not_specialize=[f"e{entry}" for entry in range(64)])
def _write_entries(
    table_ptr,
    e0: tl.int64, e1: tl.int64, e2: tl.int64, e3: tl.int64, e4: tl.int64, e5: tl.int64, e6: tl.int64,
    e7: tl.int64, e8: tl.int64, e9: tl.int64, e10: tl.int64, e11: tl.int64, e12: tl.int64, e13: tl.int64,
    e14: tl.int64, e15: tl.int64, e16: tl.int64, e17: tl.int64, e18: tl.int64, e19: tl.int64, e20: tl.int64,
    e21: tl.int64, e22: tl.int64, e23: tl.int64, e24: tl.int64, e25: tl.int64, e26: tl.int64, e27: tl.int64,
    e28: tl.int64, e29: tl.int64, e30: tl.int64, e31: tl.int64, e32: tl.int64, e33: tl.int64, e34: tl.int64,
    e35: tl.int64, e36: tl.int64, e37: tl.int64, e38: tl.int64, e39: tl.int64, e40: tl.int64, e41: tl.int64,
    e42: tl.int64, e43: tl.int64, e44: tl.int64, e45: tl.int64, e46: tl.int64, e47: tl.int64, e48: tl.int64,
    e49: tl.int64, e50: tl.int64, e51: tl.int64, e52: tl.int64, e53: tl.int64, e54: tl.int64, e55: tl.int64,
    e56: tl.int64, e57: tl.int64, e58: tl.int64, e59: tl.int64, e60: tl.int64, e61: tl.int64, e62: tl.int64,
    e63: tl.int64,
):  # fmt: skip
    entries = (
        e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13, e14, e15,
        e16, e17, e18, e19, e20, e21, e22, e23, e24, e25, e26, e27, e28, e29, e30, e31,
        e32, e33, e34, e35, e36, e37, e38, e39, e40, e41, e42, e43, e44, e45, e46, e47,
        e48, e49, e50, e51, e52, e53, e54, e55, e56, e57, e58, e59, e60, e61, e62, e63,
    )  # fmt: skip
    for entry in tl.static_range(64):
        tl.store(table_ptr + entry, entries[entry])


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
        return tuple(map(tuple, results))
