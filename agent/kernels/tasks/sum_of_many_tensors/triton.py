"""All sums in one launch over a table of addresses and sizes, one program a tensor.

The table is written by a kernel from its arguments: nothing waits for a copy from the host, and recorded in a CUDA graph
it stays what it was.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

ENTRIES = 64  # of the table, per launch of the kernel that writes it


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
def _sums(table_ptr, y_ptr, count, KIND: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    tensor = tl.program_id(0)
    x_ptr = tl.load(table_ptr + tensor).to(tl.pointer_type(KIND))
    size = tl.load(table_ptr + count + tensor)
    if ALIGNED:  # vectors are loaded only where this is known
        x_ptr = tl.multiple_of(x_ptr, 16)
        size = tl.multiple_of(size, 4)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(y_ptr + tensor, tl.sum(total, 0).to(y_ptr.dtype.element_ty))


def _table(entries: list[int], device: torch.device) -> torch.Tensor:
    """The numbers, of 64 bits each, on the device; what is beyond them in the tensor is never read."""
    table = torch.empty(-(-len(entries) // ENTRIES) * ENTRIES, dtype=torch.int64, device=device)
    padded = entries + [0] * (table.numel() - len(entries))
    for start in range(0, len(padded), ENTRIES):
        _write_entries[(1,)](table[start:], *padded[start : start + ENTRIES], num_warps=1)
    return table


KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class ModelNew(nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        tensors = [tensor.contiguous() for tensor in tensors]
        first, count = tensors[0], len(tensors)
        if any(tensor.dtype is not first.dtype for tensor in tensors):
            raise TypeError("the tensors must share one dtype")
        addresses, sizes = [tensor.data_ptr() for tensor in tensors], [tensor.numel() for tensor in tensors]
        table = _table(addresses + sizes, first.device)
        aligned = all(address % 16 == 0 for address in addresses) and all(size % 4 == 0 for size in sizes)
        y = torch.empty(count, dtype=first.dtype, device=first.device)
        _sums[(count,)](table, y, count, KIND=KINDS[first.dtype], ALIGNED=aligned, BLOCK=4096, num_warps=8)
        return y
