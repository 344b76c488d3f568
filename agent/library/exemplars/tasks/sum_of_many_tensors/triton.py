"""All sums in one launch over a table of addresses and sizes, one program a tensor.

The table travels to the GPU once a call, from pinned memory and without waiting. Where a CUDA graph is recorded, such a
copy would read that memory again at each replay, when it may hold something else: there a kernel writes the table from
its arguments, which are part of the graph.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

ENTRIES = 16  # of the table, per launch of the kernel that writes it


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
