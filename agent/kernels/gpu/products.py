"""Products of float32 matrices by three float16 tensor-core products, at float32 accuracy or better.

Of the four products of two parts each (`parts.py`) the three larger are summed. The tensor core truncates when it adds, so sums of
64 terms are added to the float32 result by an ordinary, rounding addition that also applies the blocks' scales. Tiles with values
that no scale can hold (Inf, NaN, beyond 2^75) are computed again by float32 multiply-adds, which puts Inf and NaN where they belong.

On Hopper `hopper.py` has the same two products of long sums. The ones here are what Triton's interpreter runs without a GPU, and
compute products of one step and of packed weights everywhere. Sizes below the crossover go to cuBLAS.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.hopper import (
    cut_hopper,
    few_cut_hopper,
    multiply_few_hopper,
    multiply_hopper,
    on_hopper,
)
from agent.kernels.gpu.launching import launch, repeated
from agent.kernels.gpu.parts import (
    BLOCK_K,
    STEP_K,
    TILE,
    empty_scales,
    has_misfits,
    power_of_two,
    scale_exponent,
    scale_pitch,
    split,
    tile_of,
)

# Of a scale of few bits; times the other operand's, up to 2^62, and a step's sum it is a float32.
LARGEST_SCALE = tl.constexpr((40 + 127) << 23)
# What a repeated call costs a slow host: each launch, and all that is around them. A product takes 38 us of an H200's host, torch.mm
# 19. In a CUDA graph a launch costs less and the rest nothing (agent.kernels.writing.as_replayed).
LAUNCH_S = 6e-6
CALL_S = 15e-6


@triton.jit
def _add_products(a_tiles, b_tiles, a_row, b_row, a_rows, b_rows, k, sums):
    """Adds the three products of parts of a tile's step; the low parts lie so many rows below the high ones."""
    ah, al = a_tiles.load([a_row, k]), a_tiles.load([a_rows + a_row, k])
    bh, bl = b_tiles.load([b_row, k]).T, b_tiles.load([b_rows + b_row, k]).T
    sums = tl.dot(al, bh, sums)
    sums = tl.dot(ah, bl, sums)
    return tl.dot(ah, bh, sums)


@triton.jit(do_not_specialize=["batches", "m", "n", "ks"])
def _multiply(a_tiles, b_tiles, out_tiles, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, batches, m, n, ks, alpha, beta,
              out_batch, out_row, out_col, bias_batch, bias_row, bias_col,
              HAS_BIAS: tl.constexpr, ONE: tl.constexpr, IN_TILES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
              BLOCK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Tiles of the product; ONE where one step has all terms; IN_TILES where they go to out_tiles, in halves: whole lines of memory."""
    m_tiles, n_tiles = tl.cdiv(m, BM), tl.cdiv(n, BN)
    a_pitch, b_pitch = scale_pitch(m), scale_pitch(n)
    for tile in tl.range(tl.program_id(0), batches * m_tiles * n_tiles, tl.num_programs(0)):
        batch, m_tile, n_tile = tile_of(tile, m_tiles, n_tiles, GROUP)
        row, col = m_tile * BM + tl.arange(0, BM), n_tile * BN + tl.arange(0, BN)
        a_row, b_row = batch * m + m_tile * BM, batch * n + n_tile * BN
        a_rows, b_rows = batches * m, batches * n
        a_at, b_at = a_scale_ptr + batch * a_pitch + row, b_scale_ptr + batch * b_pitch + col
        a_scale = tl.load(a_at, mask=row < m, other=0.0)
        b_scale = tl.load(b_at, mask=col < n, other=0.0)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        if ONE:
            total = _add_products(a_tiles, b_tiles, a_row, b_row, a_rows, b_rows, 0, total)
            # One after the other: the scales' product may be too small for a float32.
            total = total * a_scale[:, None] * b_scale[None, :]
        else:
            for step in tl.range(0, tl.cdiv(ks, STEP)):
                k = step * STEP
                sums = tl.zeros((BM, BN), dtype=tl.float32)
                sums = _add_products(a_tiles, b_tiles, a_row, b_row, a_rows, b_rows, k, sums)
                total += sums * a_scale[:, None] * b_scale[None, :]
                if (k + STEP) % BLOCK == 0:  # ahead of the next step, which would wait for them
                    block = (k + STEP) // BLOCK * batches
                    a_scale = tl.load(a_at + block * a_pitch, mask=(row < m) & (k + STEP < ks), other=0.0)
                    b_scale = tl.load(b_at + block * b_pitch, mask=(col < n) & (k + STEP < ks), other=0.0)
        total *= alpha
        if IN_TILES:
            one, other = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
            out_tiles.store([m_tile * BM, n_tile * BN], one)
            out_tiles.store([m_tile * BM, n_tile * BN + BN // 2], other)
        else:
            there = (row < m)[:, None] & (col < n)[None, :]
            row, col = row.to(tl.int64), col.to(tl.int64)
            if HAS_BIAS:
                at = batch.to(tl.int64) * bias_batch + row[:, None] * bias_row + col[None, :] * bias_col
                total += beta * tl.load(bias_ptr + at, mask=there, other=0.0)
            tl.store(
                out_ptr + batch.to(tl.int64) * out_batch + row[:, None] * out_row + col[None, :] * out_col,
                total,
                mask=there,
            )


@triton.jit
def _unpacked(row, first, rows, ks, p0, p1, p2, p3, UNPACK: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
              EVEN: tl.constexpr):  # fmt: skip
    """Whole numbers of ROWS rows of w (rows, ks) and STEP places from ``first`` on, and what they are multiplied by, (ROWS, 1).

    UNPACK computes them from what lies at p0 to p3, PARTS neighbors at a time: where a byte has two, they are loaded once.
    EVEN: all steps are whole, so that several bytes are read at once.

    Args:
        row: (ROWS, 1).
    """
    j = (first // PARTS + tl.arange(0, STEP // PARTS))[None, :]
    row_there = row < rows
    there = row_there if EVEN else row_there & (j < ks // PARTS)
    number, scale = UNPACK(row, j, first, there, row_there, p0, p1, p2, p3)
    k = (first + tl.arange(0, STEP))[None, :]
    number = tl.where(row_there & (k < ks), tl.reshape(number, (ROWS, STEP)), 0.0)
    return number, tl.where(row_there, tl.zeros((ROWS, 1), dtype=tl.float32) + scale, 0.0)


@triton.jit(do_not_specialize=["rows", "ks"])
def _unpack(p0, p1, p2, p3, out_ptr, rows, ks, UNPACK: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
            EVEN: tl.constexpr):  # fmt: skip
    """Writes w (rows, ks)."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    first = tl.program_id(1) * STEP
    k = (first + tl.arange(0, STEP))[None, :]
    number, scale = _unpacked(row, first, rows, ks, p0, p1, p2, p3, UNPACK, PARTS, ROWS, STEP, EVEN)
    tl.store(out_ptr + row.to(tl.int64) * ks + k, number * scale, mask=(row < rows) & (k < ks))


@triton.jit(do_not_specialize=["m", "n", "ks", "per"])
def _multiply_few(x_tiles, x_scale_ptr, w_tiles, p0, p1, p2, p3, mark_ptr, out_ptr, m, n, ks, per, to_part, to_row, to_col,
                  UNPACK: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """BM rows of x times rows of w, which is split in registers, with a scale for each row and step; rows without one get a mark.

    With UNPACK, w is whole numbers, exact in float16, times a scale of its own.
    """
    groups = tl.cdiv(m, BM)  # of rows of x: neighbors in time read the same rows of w
    from_row, from_col = tl.program_id(0) % groups * BM, tl.program_id(0) // groups * BN
    col, row = from_col + tl.arange(0, BN), from_row + tl.arange(0, BM)
    total = tl.zeros((BN, BM), dtype=tl.float32)
    all_fit = tl.full((BN,), 1, dtype=tl.int32)
    first = tl.program_id(1) * per
    for step in tl.range(first, tl.minimum(first + per, tl.cdiv(ks, STEP))):
        k = step * STEP
        xh, xl = x_tiles.load([from_row, k]).T, x_tiles.load([m + from_row, k]).T
        if UNPACK is None:
            w = w_tiles.load([from_col, k])
            exponent, fits = scale_exponent(tl.max(w.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
            w *= power_of_two(13 - exponent)[:, None]
            w_scale = power_of_two(exponent - 13)[:, None]
            w_high = w.to(tl.float16)
            w_low = (w - w_high.to(tl.float32)).to(tl.float16)
            part = tl.dot(w_low, xh)
            part = tl.dot(w_high, xl, part)
        else:
            w, w_scale = _unpacked(col[:, None], k, n, ks, p0, p1, p2, p3, UNPACK, PARTS, BN, STEP, EVEN)
            fits = tl.reshape(w_scale.to(tl.int32, bitcast=True) & 0x7FFFFFFF, (BN,)) < LARGEST_SCALE
            w_high = w.to(tl.float16)
            part = tl.dot(w_high, xl)
        part = tl.dot(w_high, xh, part)
        all_fit = tl.minimum(all_fit, fits.to(tl.int32))
        x_scale = tl.load(x_scale_ptr + k // BLOCK * scale_pitch(m) + row, mask=row < m, other=0.0)
        total += part * x_scale[None, :] * w_scale  # a scale of few bits may be tiny, too
    mark = tl.where(all_fit == 0, -1.0, 1.0)
    tl.store(mark_ptr + tl.program_id(1).to(tl.int64) * scale_pitch(n) + col, mark, mask=col < n)
    to = out_ptr + tl.program_id(1).to(tl.int64) * to_part + row.to(tl.int64)[None, :] * to_row
    tl.store(to + col.to(tl.int64)[:, None] * to_col, total, mask=(col < n)[:, None] & (row < m)[None, :])


@triton.jit(do_not_specialize=["parts", "m", "n"])
def _add_parts(parts_ptr, bias_ptr, out_ptr, parts, m, n, alpha, beta, out_row, out_col, bias_row, bias_col,
               HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out = alpha * the sum of `parts` results (m, n) + beta * bias."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there, row, col = at < m.to(tl.int64) * n, at // n, at % n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(parts):
        total += tl.load(parts_ptr + part * m.to(tl.int64) * n + at, mask=there, other=0.0)
    total *= alpha
    if HAS_BIAS:
        total += beta * tl.load(bias_ptr + row * bias_row + col * bias_col, mask=there, other=0.0)
    tl.store(out_ptr + row * out_row + col * out_col, total, mask=there)


@triton.jit(do_not_specialize=["m", "n", "ks", "a_blocks", "b_blocks"])
def _mend(a_ptr, b_ptr, p1, p2, p3, a_scale_ptr, b_scale_ptr, bias_ptr, out_ptr, m, n, ks, a_blocks, b_blocks, alpha, beta, a_batch, a_row, a_k,
          b_batch, b_k, b_col, out_batch, out_row, out_col, bias_batch, bias_row, bias_col,
          UNPACK: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
          AT_ONCE: tl.constexpr):  # fmt: skip
    """Computes tiles with rows or columns without a scale again, by float32 multiply-adds; AT_ONCE blocks of scales are read together."""
    batch, batches = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    misfits = has_misfits(a_scale_ptr, a_blocks, batches, batch, tl.program_id(0) * TILE, m, TILE, AT_ONCE)
    if misfits | has_misfits(
        b_scale_ptr, b_blocks, batches, batch, tl.program_id(1) * TILE, n, TILE, AT_ONCE
    ):
        for part_m in range(0, TILE, PART):
            for part_n in range(0, TILE, PART):
                row = (tl.program_id(0) * TILE + part_m + tl.arange(0, PART)).to(tl.int64)
                col = (tl.program_id(1) * TILE + part_n + tl.arange(0, PART)).to(tl.int64)
                total = tl.zeros((PART, PART), dtype=tl.float32)
                for first in range(0, ks, 16):
                    k = (first + tl.arange(0, 16)).to(tl.int64)
                    a = tl.load(a_ptr + batch * a_batch + row[:, None] * a_row + k[None, :] * a_k,
                                mask=(row < m)[:, None] & (k < ks)[None, :], other=0.0)  # fmt: skip
                    if UNPACK is None:
                        b = tl.load(b_ptr + batch * b_batch + k[:, None] * b_k + col[None, :] * b_col,
                                    mask=(k < ks)[:, None] & (col < n)[None, :], other=0.0)  # fmt: skip
                    else:
                        columns = col.to(tl.int32)[:, None]
                        b, scale = _unpacked(
                            columns, first, n, ks, b_ptr, p1, p2, p3, UNPACK, PARTS, PART, 16, False
                        )
                        b = tl.trans(tl.where((k < ks)[None, :], b * scale, 0.0))
                    total = tl.dot(a, b, total, input_precision="ieee")
                there = (row < m)[:, None] & (col < n)[None, :]
                total *= alpha
                if HAS_BIAS:
                    at = batch * bias_batch + row[:, None] * bias_row + col[None, :] * bias_col
                    total += beta * tl.load(bias_ptr + at, mask=there, other=0.0)
                tl.store(
                    out_ptr + batch * out_batch + row[:, None] * out_row + col[None, :] * out_col,
                    total,
                    mask=there,
                )


def product(a, b, out, bias=None, alpha=1.0, beta=1.0):
    """out = alpha * a @ b + beta * bias for a (batch, m, k), b (batch, k, n), bias that expands to out; all float32."""
    turned = b.transpose(1, 2)
    few_of = _few_of(a, turned)
    if few_of:
        added = None if bias is None else bias.expand(out.shape)[0]
        if few_of == "a":
            few(a[0], turned[0], out[0], added, alpha, beta)
        else:
            few(turned[0], a[0], out[0].t(), None if bias is None else added.t(), alpha, beta)
        return out
    batches, m, ks = a.shape
    n = b.shape[2]
    left, right = split(a, turned)
    bias_view, units = out if bias is None else bias.expand(out.shape), processors(a.device)
    sizes, is_one = (batches, m, n, ks), ks <= STEP_K
    if on_hopper(a.device) and not is_one:
        _, _, cuts, _ = cut = cut_hopper(*sizes, units)
        if cuts == 1:
            multiply_hopper(left, right, bias_view, out, sizes, cut, alpha, beta, bias is not None, units)
        else:
            sums = a.new_empty((cuts, m, n))
            multiply_hopper(left, right, sums, sums, sizes, cut, 1.0, 0.0, False, units)
            add_parts(sums, None if bias is None else bias_view[0], out[0], alpha, beta)
    else:
        tiles = batches * -(-m // TILE) * -(-n // TILE)
        in_tiles = is_one and batches == 1 and bias is None and tiles_apply(out[0])
        a_tiles, b_tiles = left.tiles(TILE), right.tiles(TILE)
        launch(
            _multiply, (min(tiles, 2 * units if is_one else units),),
            (
                a_tiles, b_tiles, TensorDescriptor.from_tensor(out[0], [TILE, TILE // 2]) if in_tiles else a_tiles,
                left.scale, right.scale, bias_view, out,
            ),
            (*sizes, alpha, beta, *out.stride(), *bias_view.stride()),
            HAS_BIAS=bias is not None, ONE=is_one, IN_TILES=in_tiles, BM=TILE, BN=TILE, STEP=STEP_K, BLOCK=BLOCK_K, GROUP=8, num_warps=8,
            num_stages=1 if is_one else 3, maxnreg=128 if is_one else None,  # two programs on a multiprocessor
        )  # fmt: skip
    mend(a, b, left.scale, right.scale, out, bias, alpha, beta)
    return out


def mend(a, b, a_scale, b_scale, out, bias, alpha, beta, unpack=None, parts=1):
    """Compute tiles of `product` with negative scales again; b is what it is unpacked from if there is an ``unpack``."""
    batches, m, ks = a.shape
    n = out.shape[2]
    sources = b if unpack else [b] * 4
    strides = (0, 0, 0) if unpack else b.stride()
    bias_view = out if bias is None else bias.expand(out.shape)
    launch(
        _mend, (-(-m // TILE), -(-n // TILE), batches), (a, *sources, a_scale, b_scale, bias_view, out),
        (m, n, ks, len(a_scale), len(b_scale), alpha, beta, *a.stride(), *strides, *out.stride(), *bias_view.stride()),
        UNPACK=unpack, PARTS=parts, HAS_BIAS=bias is not None, TILE=TILE, PART=32,
        AT_ONCE=16 if max(len(a_scale), len(b_scale)) <= 256 else 64,
    )  # fmt: skip


def tiles_apply(x):
    """Whether the copy engine can read and write a float32 matrix in tiles."""
    return x.stride(1) == 1 and x.stride(0) % 4 == 0 and x.data_ptr() % 16 == 0


def _few_of(a, turned):
    """Which of a (batch, m, k) and b (batch, n, k) has so few rows that the other is best split in registers: "a", "b" or ""."""
    return "a" if _few_pays(a, turned) else "b" if _few_pays(turned, a) else ""


def _few_pays(x, w):
    """The same of x (batch, m, k) and w (batch, n, k), which must be such that it can be read in tiles."""
    (batches, m, ks), n = x.shape, w.shape[1]
    if batches > 1 or m > 4 * TILE or n <= TILE or not tiles_apply(w[0]):
        return False
    return m <= TILE or _few_s(m, n, ks, x.device) < _parts_s(1, m, n, ks, x.device)


def few(x, w, out, bias, alpha, beta, unpack=None, parts=1):
    """out (m, n) = alpha * x (m, k) @ w (n, k)^T + beta * bias (m, n), for `_few_pays`.

    With ``unpack``, a function of Triton's, w is four tensors from which it computes elements, ``parts`` neighbors at a time.
    """
    (m, ks), n = x.shape, out.shape[1]
    [left], units, is_sum = split(x[None]), processors(x.device), bias is None and alpha == 1.0
    if unpack is None and on_hopper(x.device):
        cut = few_cut_hopper(m, n, ks, units)
        splits = cut[2]
        sums, marks = _few_results(splits, x, out, is_sum)
        multiply_few_hopper(left, w, marks, sums, cut, (m, n, ks))
    else:
        tile_m = max(16, min(TILE, triton.next_power_of_2(m)))
        tile_n = 128 if tile_m >= 64 else 64
        steps, tiles = -(-ks // STEP_K), -(-m // tile_m) * -(-n // tile_n)
        per = -(-steps // max(1, min(steps // 8, -(-2 * units // tiles))))
        splits = -(-steps // per)
        sums, marks = _few_results(splits, x, out, is_sum)
        x_tiles = left.tiles(tile_m)
        if unpack:
            w_tiles, sources = x_tiles, w
        else:
            w_tiles, sources = TensorDescriptor.from_tensor(w, [tile_n, STEP_K]), [sums] * 4
        launch(
            _multiply_few, (tiles, splits), (x_tiles, left.scale, w_tiles, *sources, marks, sums),
            (m, n, ks, per, *sums.stride()),
            UNPACK=unpack, PARTS=parts, EVEN=ks % STEP_K == 0, BM=tile_m, BN=tile_n, STEP=STEP_K, BLOCK=BLOCK_K,
            num_warps=8 if tile_n == 128 else 4, num_stages=3,
        )  # fmt: skip
    if splits > 1 or not is_sum:
        add_parts(sums, bias, out, alpha, beta)
    b, added = w if unpack else w.t()[None], None if bias is None else bias[None]
    mend(x[None], b, left.scale, marks, out[None], added, alpha, beta, unpack, parts)
    return out


def add_parts(parts, bias, out, alpha, beta):
    """out (m, n) = alpha * the sum of parts (parts, m, n) + beta * bias (m, n)."""
    bias_view = out if bias is None else bias
    launch(
        _add_parts, (-(-out.numel() // 1024),), (parts, bias_view, out),
        (*parts.shape, alpha, beta, *out.stride(), *bias_view.stride()),
        HAS_BIAS=bias is not None, BLOCK=1024,
    )  # fmt: skip


def _few_results(splits, x, out, is_sum):
    """For the splits' sums, out itself where it is the only one, and for marks, 1 or -1, of w's rows in each, which `mend` reads as scales."""
    sums = out[None] if is_sum and splits == 1 else x.new_empty((splits, *out.shape))
    return sums, empty_scales(splits, 1, out.shape[1], x.device)


def four_of(sources):
    """Up to four tensors as four, for kernels with as many pointers."""
    return [*sources, *[sources[0]] * (4 - len(sources))]


@repeated
def unpacked(sources, unpack, parts, out):
    """The matrix out (rows, ks) float32 of what ``unpack`` computes from four tensors, ``parts`` neighbors at a time."""
    rows, ks = out.shape
    launch(
        _unpack, (-(-rows // 32), -(-ks // STEP_K)), (*sources, out), (rows, ks),
        UNPACK=unpack, PARTS=parts, ROWS=32, STEP=STEP_K, EVEN=ks % STEP_K == 0,
    )  # fmt: skip
    return out


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def memory_rate(device):
    """Bytes a second that a kernel moves: 72 % of what the memory's clock and width allow; an H100's where they are unknown.

    The driver takes up to 0.7 ms to tell the clock (H200).
    """
    found = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    clock_khz = getattr(found, "memory_clock_rate", 0) or 2_619_000
    bits = getattr(found, "memory_bus_width", 0) or 5120
    return 0.72 * 2 * 1e3 * clock_khz * bits / 8


def with_launches(seconds, launches):
    """How long a call takes whose kernels take so long: the first is there after two launches from Python, the others meanwhile."""
    return max(seconds + 2 * LAUNCH_S, CALL_S + launches * LAUNCH_S)


@functools.lru_cache(4096)
def _few_s(m, n, ks, device):
    """Seconds that `few` takes an H100 or H200 without launches: rounds of steps, and the splits' sums."""
    units, rate = processors(device), memory_rate(device)
    rows, tiles, splits, per = few_cut_hopper(m, n, ks, units)
    step_s = max(1.9e-6 if rows == 128 else 1.2e-6, 4 * 128 * STEP_K * min(tiles * splits, units) / rate)
    return -(-tiles * splits // units) * (per + 4) * step_s + 4 * (2 * splits + 1) * m * n / rate


@functools.lru_cache(4096)
def _parts_s(batches, m, n, ks, device):
    """Seconds of two operands that are split before they are multiplied, without launches.

    8 bytes of traffic per element of an operand, whole rounds of tiles and steps at 220 TFLOP/s and what a tile's end costs, and the
    results: once, or those of each cut of k twice and their sums. Products of one step write theirs at 1.5 TB/s, whatever the tile.
    """
    if min(m, n) < 64:
        return math.inf
    units, rate = processors(device), memory_rate(device)
    if ks <= STEP_K:
        return 8 * batches * ks * (m + n) / rate + 4 * batches * m * n / 1.5e12 + 4.5e-6
    pieces, tiles, cuts, per = cut_hopper(batches, m, n, ks, units)
    rounds = -(-tiles * cuts // units) * pieces // 2
    product_s = rounds * (4.5e-6 + units * 2 * TILE * TILE * per * STEP_K / 220e12)
    results = 1 if cuts == 1 else 2 * cuts + 1
    return 8 * batches * ks * (m + n) / rate + product_s + 4 * results * batches * m * n / rate


def product_pays(a, b):
    """Whether three float16 products of a (batch, m, k) and b (batch, k, n) are faster than cuBLAS in float32."""
    (batches, m, ks), n = a.shape, b.shape[2]
    if min(m, n, ks) < 8 or ks < 64 or batches >= 1 << 16:  # a CUDA grid's second and third axes end there
        return False
    return _pays(batches, m, n, ks, _few_of(a, b.transpose(1, 2)), a.device)


@functools.lru_cache(4096)
def _pays(batches, m, n, ks, few_of, device):
    """cuBLAS on an H100 or H200: 50 TFLOP/s, 35 where few terms are summed, 26 or 33 with few rows; or the memory's rate, 1.5 TB/s with
    the fewest rows; and 10 us. Here 2 to 7 us more than the functions above say (30 sizes in a CUDA graph), or what the host takes.
    """
    operands, results, fewest = batches * ks * (m + n), batches * m * n, min(m, n)
    cublas = 26e12 if fewest <= 48 else 33e12
    cublas = cublas if few_of and fewest <= 96 else 50e12 if ks >= 256 else 35e12
    rate = 1.5e12 if few_of and fewest <= 32 else memory_rate(device)
    cublas_s = max(2 * results * ks / cublas, 4 * (operands + results) / rate) + 10e-6
    if few_of:
        ours_s = _few_s(*((m, n) if few_of == "a" else (n, m)), ks, device) + 2e-6
    else:
        ours_s = _parts_s(batches, m, n, ks, device) + (7e-6 if ks <= 256 else 4.5e-6)
    return max(ours_s, CALL_S + 4 * LAUNCH_S) < 0.95 * cublas_s
