"""Float32 matrices as pairs of float16 matrices, from which tensor cores multiply at float32 accuracy.

An operand is cut into blocks of 256 along the summed dimension. A block of a row is scaled by a power of two (exactly) and split into
a high and a low float16 part, which together hold 22 bits.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.launching import launch

STEP_K = 64  # of the main kernels' loops
BLOCK_K = 256  # one scale
TILE = 128
LARGEST_BITS = tl.constexpr((75 + 127) << 23)  # of 2^75, as a float32's bits
#: Scales of a matrix's rows begin at multiples of this, so that kernels read those of a tile without masks.
SCALE_ROWS = tl.constexpr(256)


@triton.jit
def scale_exponent(bits):
    """Exponent of the largest magnitude, given as a float32's bits, and whether a scale exists for it."""
    fits = bits < LARGEST_BITS
    exponent = tl.maximum((bits >> 23) - 127, -112)
    return tl.where(fits & (bits > 0), exponent, 0), fits


@triton.jit
def power_of_two(exponent):
    """2^exponent as a float32, exactly; -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_pitch(rows):
    """How many scales lie between those of two blocks of k."""
    return tl.cdiv(rows, SCALE_ROWS) * SCALE_ROWS


@triton.jit
def _split_rows(x_ptr, halves_ptr, scale_ptr, program, rows, ks, padded, heads, batch_stride, head_stride, row_stride, k_stride,
                ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """One block of k of some rows: scaled, in two parts, with k contiguous; WIDE where all strides and ks are multiples of four."""
    if WIDE:  # the compiler knows it, and loads four at once
        ks, row_stride, head_stride, batch_stride = (
            ks // 4 * 4,
            row_stride // 4 * 4,
            head_stride // 4 * 4,
            batch_stride // 4 * 4,
        )
    padded = padded // 8 * 8
    batch, k_block = tl.program_id(1), tl.program_id(2)
    row = program * ROWS + tl.arange(0, ROWS)
    k = k_block * BLOCK + tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (k < ks)[None, :]
    offsets = row.to(tl.int64)[:, None] * row_stride + k.to(tl.int64)[None, :] * k_stride
    begin = (batch // heads).to(tl.int64) * batch_stride + (batch % heads).to(tl.int64) * head_stride
    x = tl.load(x_ptr + begin + offsets, mask=there, other=0.0)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(bits, axis=1)  # NaN is above Inf
    exponent, fits = scale_exponent(largest)
    scaled = x * power_of_two(13 - exponent)[:, None]
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    to = (batch.to(tl.int64) * rows + row)[:, None] * padded + k[None, :]
    written = (row < rows)[:, None] & (k < padded)[None, :]
    tl.store(halves_ptr + to, high, mask=written)
    tl.store(halves_ptr + tl.num_programs(1).to(tl.int64) * rows * padded + to, low, mask=written)
    scale = power_of_two(exponent - 13)
    to = scale_ptr + (k_block * tl.num_programs(1) + batch).to(tl.int64) * scale_pitch(rows) + row
    tl.store(to, tl.where(fits, scale, -scale), mask=row < rows)


@triton.jit(do_not_specialize=["x_rows", "y_rows", "ks"])
def _split(x_ptr, x_halves, x_scale, y_ptr, y_halves, y_scale, x_rows, y_rows, ks, padded, heads, x_batch, x_head, x_row, x_k,
           y_batch, y_head, y_row, y_k, X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr, BLOCK: tl.constexpr, X_WIDE: tl.constexpr,
           Y_WIDE: tl.constexpr):  # fmt: skip
    """Programs for the rows of x, then for those of y."""
    program, of_x = tl.program_id(0), tl.cdiv(x_rows, X_ROWS)
    if program < of_x:
        _split_rows(x_ptr, x_halves, x_scale, program, x_rows, ks, padded, heads, x_batch, x_head, x_row, x_k, X_ROWS, BLOCK, X_WIDE)  # fmt: skip
    else:
        _split_rows(y_ptr, y_halves, y_scale, program - of_x, y_rows, ks, padded, heads, y_batch, y_head, y_row, y_k, Y_ROWS, BLOCK, Y_WIDE)  # fmt: skip


@triton.jit
def has_misfits(scale_ptr, blocks, batches, batch, from_row, rows, ROWS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Whether one of ROWS rows from ``from_row`` on has values that no scale can hold: a scale is negative.

    Args:
        blocks: of k; AT_ONCE of them are read together.
    """
    row = from_row + tl.arange(0, ROWS)
    smallest = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, blocks, AT_ONCE):
        block = first + tl.arange(0, AT_ONCE)
        at = (block * batches + batch).to(tl.int64)[:, None] * scale_pitch(rows) + row[None, :]
        scale = tl.load(scale_ptr + at, mask=(block < blocks)[:, None] & (row < rows)[None, :], other=0.0)
        smallest = tl.minimum(smallest, tl.min(scale, axis=0))
    return tl.min(smallest, axis=0) < 0.0


@triton.jit
def tile_of(tile, m_tiles, n_tiles, GROUP: tl.constexpr):
    """Row and column of a tile, in an order that keeps operands in L2, and its batch."""
    per_batch = m_tiles * n_tiles
    batch = tile // per_batch
    tile %= per_batch
    group = tile // (GROUP * n_tiles)
    first = group * GROUP
    size = tl.minimum(m_tiles - first, GROUP)
    return batch, first + (tile % (GROUP * n_tiles)) % size, (tile % (GROUP * n_tiles)) // size


def empty_scales(blocks, batches, rows, device):
    """For scales (blocks of k, batch, rows padded as `scale_pitch` has it)."""
    padded = -(-rows // SCALE_ROWS.value) * SCALE_ROWS.value
    return torch.empty((blocks, batches, padded), dtype=torch.float32, device=device)


class Parts:
    """An operand (batch, rows, k) in two float16 parts, see `split`.

    Attributes:
        halves: (2 * batch * rows, k padded to a multiple of 8) float16, all rows' high parts above their low ones.
        scale: (blocks of k, batch, rows padded to a multiple of 256) float32, what a product of the parts is multiplied by; negative
            for rows that must be computed in float32.
    """

    def __init__(self, batches, rows, ks, device):
        self.halves = torch.empty((2 * batches * rows, -(-ks // 8) * 8), dtype=torch.float16, device=device)
        self.scale = empty_scales(-(-ks // BLOCK_K), batches, rows, device)

    def tiles(self, rows):
        """A descriptor of the parts for the copy engine, in tiles of so many rows and `STEP_K` places."""
        return TensorDescriptor.from_tensor(self.halves, [rows, STEP_K])


def split(x, y=None):
    """`Parts` of x (batch, rows, k), and of y (batch, its own rows, k) if there is one: a list.

    Both may have an axis of heads after the batch, with any stride.
    """
    x, y = (one if one is None or one.dim() == 4 else one.unsqueeze(1) for one in (x, y))
    batches, heads, rows, ks = x.shape
    of_x = Parts(batches * heads, rows, ks, x.device)
    found = [of_x] if y is None else [of_x, Parts(batches * heads, y.shape[2], ks, x.device)]
    y, y_rows, of_y = (x, 0, of_x) if y is None else (y, y.shape[2], found[1])
    # A block need not be longer than a row.
    block = min(BLOCK_K, max(16, triton.next_power_of_2(ks)))
    x_step, y_step = (8 * BLOCK_K // block if one.stride(3) == 1 else 32 for one in (x, y))
    x_wide, y_wide = (
        one.stride(3) == 1 and not any(size % 4 for size in (ks, *one.stride()[:3])) for one in (x, y)
    )
    launch(
        _split, (-(-rows // x_step) + -(-y_rows // y_step), batches * heads, -(-ks // BLOCK_K)),
        (x, of_x.halves, of_x.scale, y, of_y.halves, of_y.scale),
        (rows, y_rows, ks, of_x.halves.shape[1], heads, *x.stride(), *y.stride()),
        X_ROWS=x_step, Y_ROWS=y_step, BLOCK=block, X_WIDE=x_wide, Y_WIDE=y_wide,
    )  # fmt: skip
    return found
