"""Products of two parts each on Hopper, written in Gluon: warps that load, and groups of four warps that multiply on their own.

Each group of warps multiplies 64 rows at a time: while one adds its sums to its results, another keeps the tensor cores busy. A tile
of 256 rows needs a quarter less of L2 than one of 128, and a group's two halves share its registers for sums.
"""

import functools

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import (
    BLOCK_K,
    STEP_K,
    power_of_two,
    scale_exponent,
    scale_pitch,
    tile_of,
)

GROUP_ROWS = gl.constexpr(64)  # of one instruction of a group of warps
COLS = gl.constexpr(128)
STEP = gl.constexpr(STEP_K)
HALF_TILES = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
FLOAT_TILES = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)


@gluon.jit
def barriers(STAGES: gl.constexpr):
    """Of stages of shared memory: one says that it is full, one that both groups of warps are done with it."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    return full, empty


@gluon.jit
def _steps_of(result, batches, ks, per, PIECES: gl.constexpr):
    """Batch of a result, and the steps of its cut of k: all in wide tiles, whose registers are needed elsewhere."""
    if PIECES == 4:
        return result, 0, gl.cdiv(ks, STEP)
    first = result // batches * per
    return result % batches, first, gl.minimum(first + per, gl.cdiv(ks, STEP))


@gluon.jit
def _load_tiles(a_tiles, b_tiles, a_parts, b_parts, full, empty, batches, m, n, ks, cuts, per,
                PIECES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """What `_multiply_tiles` multiplies, stage by stage; low parts lie below all high ones."""
    m_tiles, n_tiles = gl.cdiv(m, PIECES * GROUP_ROWS), gl.cdiv(n, COLS)
    a_rows, b_rows = batches * m, batches * n
    count = 0
    for tile in range(gl.program_id(0), cuts * batches * m_tiles * n_tiles, gl.num_programs(0)):
        result, m_tile, n_tile = tile_of(tile, m_tiles, n_tiles, GROUP)
        batch, first, last = _steps_of(result, batches, ks, per, PIECES)
        a_row, b_row = batch * m + m_tile * PIECES * GROUP_ROWS, batch * n + n_tile * COLS
        for step in range(first, last):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            there = full.index(stage)
            mbarrier.expect(there, 2 * 2 * (PIECES * GROUP_ROWS + COLS) * STEP)
            k = step * STEP
            for piece in gl.static_range(PIECES):
                to, row = (stage * PIECES + piece) * 2, a_row + piece * GROUP_ROWS
                tma.async_copy_global_to_shared(a_tiles, [row, k], there, a_parts.index(to))
                tma.async_copy_global_to_shared(a_tiles, [a_rows + row, k], there, a_parts.index(to + 1))
            tma.async_copy_global_to_shared(b_tiles, [b_row, k], there, b_parts.index(stage * 2))
            tma.async_copy_global_to_shared(b_tiles, [b_rows + b_row, k], there, b_parts.index(stage * 2 + 1))
            count += 1


@gluon.jit
def _sums(high, low, b_parts, stage, sums):
    """The three products of parts of one step."""
    b_high, b_low = b_parts.index(stage * 2).permute((1, 0)), b_parts.index(stage * 2 + 1).permute((1, 0))
    sums = warpgroup_mma(low, b_high, sums, use_acc=False, is_async=True)
    sums = warpgroup_mma(high, b_low, sums, is_async=True)
    sums = warpgroup_mma(high, b_high, sums, is_async=True)
    return warpgroup_mma_wait(0, deps=[sums])


@gluon.jit
def _scaled(sums, a_at, b_at, layout: gl.constexpr):
    """The sums of a tile's 64 rows by the scales of both sides, one after the other: their product may be too small for a float32."""
    a = gl.load(a_at + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, layout)))
    b = gl.load(b_at + gl.arange(0, COLS, gl.SliceLayout(0, layout)))
    return (sums * a[:, None]) * b[None, :]


@gluon.jit
def _multiply_tiles(WHICH: gl.constexpr, a_parts, b_parts, full, empty, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, batches, m, n, ks,
                    cuts, per, alpha, beta, out_batch, out_row, out_col, bias_batch, bias_row, bias_col, HAS_BIAS: gl.constexpr,
                    PIECES: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """One group's half of the rows of each tile; with four pieces of rows it has two, of which one's sums are in registers at a time.

    The results of a cut of k lie behind those of the one before, for all batches.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    m_tiles, n_tiles = gl.cdiv(m, PIECES * GROUP_ROWS), gl.cdiv(n, COLS)
    a_pitch, b_pitch = scale_pitch(m), scale_pitch(n)
    piece: gl.constexpr = WHICH * (PIECES // 2)
    sums = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
    count = 0
    for tile in range(gl.program_id(0), cuts * batches * m_tiles * n_tiles, gl.num_programs(0)):
        result, m_tile, n_tile = tile_of(tile, m_tiles, n_tiles, GROUP)
        batch, first, last = _steps_of(result, batches, ks, per, PIECES)
        from_row, from_col = (m_tile * PIECES + piece) * GROUP_ROWS, n_tile * COLS
        total = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
        more = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
        for step in range(first, last):
            stage, row = count % STAGES, batch + step * STEP // BLOCK * batches
            a_at, b_at = a_scale_ptr + (row * a_pitch + from_row), b_scale_ptr + (row * b_pitch + from_col)
            mbarrier.wait(full.index(stage), (count // STAGES) & 1)
            at = (stage * PIECES + piece) * 2
            sums = _sums(a_parts.index(at), a_parts.index(at + 1), b_parts, stage, sums)
            if PIECES == 4:
                total += _scaled(sums, a_at, b_at, layout)
                sums = _sums(a_parts.index(at + 2), a_parts.index(at + 3), b_parts, stage, sums)
            # Before the sums are added: the next tiles are loaded meanwhile.
            mbarrier.arrive(empty.index(stage))
            if PIECES == 4:
                more += _scaled(sums, a_at + GROUP_ROWS, b_at, layout)
            else:
                total += _scaled(sums, a_at, b_at, layout)
            count += 1
        row = from_row + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, layout))
        col = from_col + gl.arange(0, COLS, gl.SliceLayout(0, layout))
        _write(total, result, row, col, bias_ptr, out_ptr, m, n, alpha, beta, out_batch, out_row, out_col,
               bias_batch, bias_row, bias_col, HAS_BIAS)  # fmt: skip
        if PIECES == 4:
            _write(more, result, row + GROUP_ROWS, col, bias_ptr, out_ptr, m, n, alpha, beta, out_batch, out_row, out_col,
                   bias_batch, bias_row, bias_col, HAS_BIAS)  # fmt: skip


@gluon.jit
def _write(total, batch, row, col, bias_ptr, out_ptr, m, n, alpha, beta, out_batch, out_row, out_col, bias_batch, bias_row, bias_col,
           HAS_BIAS: gl.constexpr):  # fmt: skip
    """out = alpha * total + beta * bias at some rows and columns."""
    there = (row < m)[:, None] & (col < n)[None, :]
    batch, row, col = batch.to(gl.int64), row.to(gl.int64), col.to(gl.int64)
    total *= alpha
    if HAS_BIAS:
        at = batch * bias_batch + row[:, None] * bias_row + col[None, :] * bias_col
        total += beta * gl.load(bias_ptr + at, mask=there, other=0.0)
    gl.store(out_ptr + batch * out_batch + row[:, None] * out_row + col[None, :] * out_col, total, mask=there)


@gluon.jit(do_not_specialize=["batches", "m", "n", "ks", "cuts", "per"])
def _multiply_hopper(a_tiles, b_tiles, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, batches, m, n, ks, cuts, per, alpha, beta,
                     out_batch, out_row, out_col, bias_batch, bias_row, bias_col, HAS_BIAS: gl.constexpr,
                     PIECES: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """Tiles of 64 times PIECES (2 or 4) rows and 128 columns."""
    a_parts = gl.allocate_shared_memory(gl.float16, [STAGES * PIECES * 2, GROUP_ROWS, STEP], a_tiles.layout)
    b_parts = gl.allocate_shared_memory(gl.float16, [STAGES * 2, COLS, STEP], b_tiles.layout)
    full, empty = barriers(STAGES)
    gl.warp_specialize(
        [
            (_multiply_tiles, (0, a_parts, b_parts, full, empty, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, batches, m, n, ks,
                               cuts, per, alpha, beta, out_batch, out_row, out_col, bias_batch, bias_row, bias_col, HAS_BIAS,
                               PIECES, STAGES, BLOCK, GROUP)),
            (_multiply_tiles, (1, a_parts, b_parts, full, empty, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, batches, m, n, ks,
                               cuts, per, alpha, beta, out_batch, out_row, out_col, bias_batch, bias_row, bias_col, HAS_BIAS,
                               PIECES, STAGES, BLOCK, GROUP)),
            (_load_tiles, (a_tiles, b_tiles, a_parts, b_parts, full, empty, batches, m, n, ks, cuts, per, PIECES, STAGES, GROUP)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


@gluon.jit
def _load_few(x_tiles, w_tiles, x_parts, w_parts, full, empty, m, from_row, from_col, first, last, BM: gl.constexpr,
              STAGES: gl.constexpr):  # fmt: skip
    """What `_split_and_multiply` multiplies, stage by stage."""
    for count in range(last - first):
        stage, k = count % STAGES, (first + count) * STEP
        mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
        there = full.index(stage)
        mbarrier.expect(there, 4 * (BM + COLS) * STEP)
        for piece in gl.static_range(2):
            to = w_parts.index(stage * 2 + piece)
            tma.async_copy_global_to_shared(w_tiles, [from_col + piece * GROUP_ROWS, k], there, to)
        tma.async_copy_global_to_shared(x_tiles, [from_row, k], there, x_parts.index(stage * 2))
        tma.async_copy_global_to_shared(x_tiles, [m + from_row, k], there, x_parts.index(stage * 2 + 1))


@gluon.jit
def _split_and_multiply(WHICH: gl.constexpr, x_parts, w_parts, full, empty, x_scale_ptr, mark_ptr, out_ptr, m, n, from_row, from_col,
                        first, last, part, to_part, to_row, to_col, BM: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr):  # fmt: skip
    """64 rows of w, split in registers with a scale for each row and step, times BM rows of x; rows without a scale get a mark."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    w_rows: gl.constexpr = gl.SliceLayout(1, layout)
    own_row = gl.arange(0, BM, gl.SliceLayout(0, layout))
    total = gl.zeros([GROUP_ROWS, BM], gl.float32, layout)
    sums = gl.zeros([GROUP_ROWS, BM], gl.float32, layout)
    all_fit = gl.full([GROUP_ROWS], 1, gl.int32, w_rows)
    for count in range(last - first):
        stage, block = count % STAGES, (first + count) * STEP // BLOCK
        mbarrier.wait(full.index(stage), (count // STAGES) & 1)
        w = w_parts.index(stage * 2 + WHICH).load(operand)
        exponent, fits = scale_exponent(gl.max(w.to(gl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
        w *= power_of_two(13 - exponent)[:, None]
        high = w.to(gl.float16)
        sums = _sums(high, (w - high.to(gl.float32)).to(gl.float16), x_parts, stage, sums)
        mbarrier.arrive(empty.index(stage))
        all_fit = gl.minimum(all_fit, gl.convert_layout(fits.to(gl.int32), w_rows))
        w_scale = gl.convert_layout(power_of_two(exponent - 13), w_rows)
        x_scale = gl.load(x_scale_ptr + (block * scale_pitch(m) + from_row) + own_row)
        total += (sums * w_scale[:, None]) * x_scale[None, :]
    row = from_row + own_row
    col = from_col + WHICH * GROUP_ROWS + gl.arange(0, GROUP_ROWS, w_rows)
    mark = gl.where(all_fit == 0, -1.0, 1.0)
    gl.store(mark_ptr + part.to(gl.int64) * scale_pitch(n) + col, mark, mask=col < n)
    to = out_ptr + part.to(gl.int64) * to_part + row.to(gl.int64)[None, :] * to_row
    gl.store(to + col.to(gl.int64)[:, None] * to_col, total, mask=(col < n)[:, None] & (row < m)[None, :])


@gluon.jit(do_not_specialize=["m", "n", "ks", "per"])
def _multiply_few_hopper(x_tiles, x_scale_ptr, w_tiles, mark_ptr, out_ptr, m, n, ks, per, to_part, to_row, to_col,
                         BM: gl.constexpr, STAGES: gl.constexpr, BLOCK: gl.constexpr):  # fmt: skip
    """BM rows of x times 128 rows of w, over ``per`` steps of the sum."""
    x_parts = gl.allocate_shared_memory(gl.float16, [STAGES * 2, BM, STEP], x_tiles.layout)
    w_parts = gl.allocate_shared_memory(gl.float32, [STAGES * 2, GROUP_ROWS, STEP], w_tiles.layout)
    full, empty = barriers(STAGES)
    groups, part = gl.cdiv(m, BM), gl.program_id(1)  # neighbors in time read the same rows of w
    first = part * per
    last = gl.minimum(first + per, gl.cdiv(ks, STEP))
    from_row, from_col = gl.program_id(0) % groups * BM, gl.program_id(0) // groups * COLS
    gl.warp_specialize(
        [
            (_split_and_multiply, (0, x_parts, w_parts, full, empty, x_scale_ptr, mark_ptr, out_ptr, m, n, from_row, from_col,
                                   first, last, part, to_part, to_row, to_col, BM, STAGES, BLOCK)),
            (_split_and_multiply, (1, x_parts, w_parts, full, empty, x_scale_ptr, mark_ptr, out_ptr, m, n, from_row, from_col,
                                   first, last, part, to_part, to_row, to_col, BM, STAGES, BLOCK)),
            (_load_few, (x_tiles, w_tiles, x_parts, w_parts, full, empty, m, from_row, from_col, first, last, BM, STAGES)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


@functools.cache
def on_hopper(device):
    """Whether the GPU has the copy engine and the tensor cores that products are written for, and run on.

    Not compute capability 10: Triton 3.6 compiles the product to a trap there.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def _tiles(parts, rows):
    """A descriptor of the parts for the copy engine, in tiles of so many rows."""
    return GluonDescriptor.from_tensor(parts.halves, [rows, STEP_K], HALF_TILES)


@functools.lru_cache(4096)
def cut_hopper(batches, m, n, ks, units):
    """Of `multiply_hopper`: pieces of 64 rows in a tile, how many tiles there are, in how many cuts of k, and each cut's steps.

    Whole rounds of tiles; the last of a short sum is written while nothing is multiplied, and a wide one takes longer. Where tiles are
    few, k is cut: a step of all units takes 1.3 us, and so do 4 MB of sums that are written and read again.
    """
    across, steps = batches * -(-n // COLS.value), -(-ks // STEP_K)
    wide, narrow = across * -(-m // 256), across * -(-m // 128)
    if -(-wide // units) * 2 <= -(-narrow // units) * (1.05 if ks >= 2048 else 0.95):
        return 4, wide, 1, steps
    most = 1 if batches > 1 else max(1, min(64, steps // 16))

    def cost(cuts):
        sums = 0 if cuts == 1 else 8 + (2 * cuts + 1) * 4 * m * n / 4e6
        return -(-narrow * cuts // units) * (-(-steps // cuts) + 4) + sums

    per = -(-steps // min(range(1, most + 1), key=cost))
    return 2, narrow, -(-steps // per), per


def multiply_hopper(left, right, bias, out, sizes, cut, alpha, beta, has_bias, units):
    """out = alpha * the product of two operands' `Parts` + beta * bias.

    Args:
        bias: as large as out.
        out: (batches, m, n), or without alpha and bias (cuts, m, n), whose sum over cuts is the product.
        sizes: batches, m, n, ks.
        cut: of `cut_hopper`.
        units: multiprocessors.
    """
    pieces, tiles, cuts, per = cut
    launch(
        _multiply_hopper, (min(tiles * cuts, units),),
        (_tiles(left, 64), _tiles(right, 128), left.scale, right.scale, bias, out),
        (*sizes, cuts, per, alpha, beta, *out.stride(), *bias.stride()),
        HAS_BIAS=has_bias, PIECES=pieces, STAGES=2 if pieces == 4 else 3, BLOCK=BLOCK_K, GROUP=8, num_warps=4,
    )  # fmt: skip


@functools.lru_cache(4096)
def few_cut_hopper(m, n, ks, units):
    """Rows of x in a tile of `multiply_few_hopper`, how many tiles there are, in how many splits of k, and each split's steps.

    The splits that take the fewest rounds times steps; a round's first steps wait for memory.
    """
    rows = max(16, min(128, triton.next_power_of_2(m)))
    tiles, steps = -(-m // rows) * -(-n // COLS.value), -(-ks // STEP_K)
    splits = range(1, max(1, min(64, steps // 8)) + 1)
    _, per = min((-(-tiles * each // units) * (-(-steps // each) + 4), -(-steps // each)) for each in splits)
    return rows, tiles, -(-steps // per), per


def multiply_few_hopper(left, w, marks, sums, cut, sizes):
    """sums (splits, m, n) = parts of x (m, k) @ w (n, k)^T.

    Args:
        left: the `Parts` of x.
        marks: (splits, 1, rows of w padded to a multiple of 256) float32; -1 where rows must be computed in float32, else 1.
        cut: of `few_cut_hopper`.
        sizes: m, n, ks.
    """
    rows, tiles, splits, per = cut
    w_tiles = GluonDescriptor.from_tensor(w, [GROUP_ROWS.value, STEP_K], FLOAT_TILES)
    launch(
        _multiply_few_hopper, (tiles, splits), (_tiles(left, rows), left.scale, w_tiles, marks, sums),
        (*sizes, per, *sums.stride()),
        BM=rows, STAGES=3 if rows == 128 else 4, BLOCK=BLOCK_K, num_warps=4,
    )  # fmt: skip
