"""Sums over each of many tensors, or norms of them, by one launch: from biases of 64 elements to matrices of millions.

Programs read where their piece of a tensor lies from a table of addresses. A tensor of more than one piece is summed up by a second
kernel, always in the same order.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch

MOST_OF_TENSOR, BLOCK = 65536, 4096  # elements of a program, and of one of its steps
MOST_KEPT = 64
_places, _tables = {}, {}
_of_graphs = []  # tables that graphs read, which must outlive them


@triton.jit
def _sum_piece(
    place_ptr, pieces_ptr, part_ptr, SQUARES: tl.constexpr, ALIGNED: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of one piece, or of its squares; of a piece the table has the tensor, the first element, and how many there are."""
    piece = tl.program_id(0)
    which = tl.load(pieces_ptr + 3 * piece)
    first = tl.load(pieces_ptr + 3 * piece + 1).to(tl.int64) * PIECE
    count = tl.load(pieces_ptr + 3 * piece + 2)
    x_ptr = tl.load(place_ptr + which).to(tl.pointer_type(tl.float32))
    if ALIGNED:  # neighbors are loaded together only where this is known
        x_ptr, count = tl.multiple_of(x_ptr, 16), tl.multiple_of(count, 4)
    x_ptr += first
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < count, other=0.0)
        total += x * x if SQUARES else x
    tl.store(part_ptr + piece, tl.sum(total, axis=0))


@triton.jit
def _sum_parts(part_ptr, spans_ptr, out_ptr, ROOT: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the parts of one tensor, or its root; the table has the first part and how many there are."""
    tensor = tl.program_id(0)
    first, count = tl.load(spans_ptr + 2 * tensor), tl.load(spans_ptr + 2 * tensor + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(part_ptr + first + at, mask=at < count, other=0.0)
    found = tl.sum(total, axis=0)
    tl.store(out_ptr + tensor, tl.sqrt(found) if ROOT else found)


def _pieces(sizes, device):
    """Tables of pieces (tensor, number within it, elements) and of tensors (first piece, pieces), int32 on the device."""
    key = sizes, device
    if key not in _tables:
        if len(_tables) >= MOST_KEPT:
            _tables.clear()
        pieces, tensors = [], []
        for tensor, size in enumerate(sizes):
            count = -(-size // MOST_OF_TENSOR)
            tensors.append((len(pieces), count))
            pieces += [
                (tensor, one, min(MOST_OF_TENSOR, size - one * MOST_OF_TENSOR)) for one in range(count)
            ]
        rows = [
            torch.tensor(table, dtype=torch.int32).to(device) for table in (pieces or [(0, 0, 0)], tensors)
        ]
        _tables[key] = len(pieces), *rows
    return _tables[key]


def sums_of_lists(tensors, norm):
    """A sum for each of some contiguous float32 tensors, or the square root of the sum of squares: (how many,) float32.

    None where the table of addresses would have to be copied while a CUDA graph is captured.
    """
    device = tensors[0].device
    addresses, sizes = tuple(map(torch.Tensor.data_ptr, tensors)), tuple(map(torch.Tensor.numel, tensors))
    key = addresses, sizes, device
    known, is_captured = _places.get(key), device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if is_captured and (known is None or (sizes, device) not in _tables):
        return None
    if known is None:
        if len(_places) >= MOST_KEPT:
            _places.clear()
        aligned = all(place % 16 == 0 for place in addresses) and all(size % 4 == 0 for size in sizes)
        known = _places[key] = torch.tensor(addresses, dtype=torch.int64).to(device), aligned
    places, aligned = known
    count, pieces, of_tensors = _pieces(sizes, device)
    if is_captured:
        _of_graphs.append((places, pieces, of_tensors))
    parts = torch.empty(max(count, 1), dtype=torch.float32, device=device)
    out = torch.empty(len(tensors), dtype=torch.float32, device=device)
    launch(
        _sum_piece, (max(count, 1),), (places, pieces, parts), (), SQUARES=norm, ALIGNED=aligned, PIECE=MOST_OF_TENSOR, BLOCK=BLOCK,
        num_warps=8,
    )  # fmt: skip
    launch(_sum_parts, (len(tensors),), (parts, of_tensors, out), (), ROOT=norm, BLOCK=64, num_warps=1)
    return out
