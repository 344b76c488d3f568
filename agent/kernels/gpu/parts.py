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
FLAG_ROWS = 128  # rows that are computed again together
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


@triton.jit(do_not_specialize=["rows", "ks"])
def _split(x_ptr, high_ptr, low_ptr, scale_ptr, flag_ptr, rows, ks, padded, batch_stride, row_stride, k_stride,
           ROWS: tl.constexpr, BLOCK: tl.constexpr, FLAG_ROWS: tl.constexpr):  # fmt: skip
    """One block of k of some rows: scaled, in two parts, with k contiguous."""
    batch, k_block = tl.program_id(1), tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = k_block * BLOCK + tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (k < ks)[None, :]
    offsets = row.to(tl.int64)[:, None] * row_stride + k.to(tl.int64)[None, :] * k_stride
    x = tl.load(x_ptr + batch.to(tl.int64) * batch_stride + offsets, mask=there, other=0.0)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(bits, axis=1)  # NaN is above Inf
    exponent, fits = scale_exponent(largest)
    scaled = x * power_of_two(13 - exponent)[:, None]
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    to = (batch.to(tl.int64) * rows + row)[:, None] * padded + k[None, :]
    written = (row < rows)[:, None] & (k < padded)[None, :]
    tl.store(high_ptr + to, high, mask=written)
    tl.store(low_ptr + to, low, mask=written)
    to = scale_ptr + (k_block * tl.num_programs(1) + batch).to(tl.int64) * scale_pitch(rows) + row
    tl.store(to, power_of_two(exponent - 13), mask=row < rows)
    if tl.max((~fits).to(tl.int32)) > 0:
        tl.store(flag_ptr + batch * tl.cdiv(rows, FLAG_ROWS) + row // FLAG_ROWS, 1, mask=(row < rows) & ~fits)


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


class Parts:
    """An operand (batch, rows, k) in two float16 parts.

    Attributes:
        high, low: (batch * rows, k padded to a multiple of 8) float16.
        scale: (blocks of k, batch, rows padded to a multiple of 256) float32, what a product of the parts is multiplied by.
        flag: (batch, groups of rows) int32, not zero where rows must be computed in float32.
    """

    def __init__(self, x):
        batches, rows, ks = x.shape
        padded, blocks = -(-ks // 8) * 8, -(-ks // BLOCK_K)
        self.high, self.low = torch.empty((2, batches * rows, padded), dtype=torch.float16, device=x.device)
        pitch = triton.cdiv(rows, SCALE_ROWS.value) * SCALE_ROWS.value
        self.scale = torch.empty((blocks, batches, pitch), dtype=torch.float32, device=x.device)
        self.flag = torch.zeros((batches, -(-rows // FLAG_ROWS)), dtype=torch.int32, device=x.device)
        step = 8 if x.stride(2) == 1 else 32
        launch(
            _split, (-(-rows // step), batches, blocks), (x, self.high, self.low, self.scale, self.flag),
            (rows, ks, padded, *x.stride()),
            ROWS=step, BLOCK=BLOCK_K, FLAG_ROWS=FLAG_ROWS,
        )  # fmt: skip

    def tiles(self, rows):
        """Descriptors of both parts for the copy engine, in tiles of so many rows and `STEP_K` places."""
        return [TensorDescriptor.from_tensor(part, [rows, STEP_K]) for part in (self.high, self.low)]
