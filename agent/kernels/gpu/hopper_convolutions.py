"""Convolutions of two parts each on Hopper: an implicit product of which the copy engine loads both sides, see `hopper`.

An image lies channels last and with zeros around it, so that a tap is a shift of its rows of channels: places of the output are rows
of the left side, at every place of the padded image, and those between images or beyond a row are computed and not written. With a
stride, the pixels of a block of the stride's size lie beside each other as channels, and a tap is a shift of blocks.

Taps along a row share what was loaded. Half a tile, 64 * PIECES places, takes as many neighbors and the taps' reach more of them into
shared memory, once, in groups of eight rows that the tensor cores read as one block: group g has places g, g + SPAN, ..., g + 7 SPAN,
so that the next tap begins one group further.
"""

import functools
import itertools
import math
from typing import NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

from agent.kernels.gpu.hopper import GROUP_ROWS, barriers
from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import power_of_two, scale_exponent

#: Of shared memory, for stages and for the turn of the results before they are written.
_SHARED_BYTES = 224 * 1024
#: Terms after which sums leave the tensor cores, which truncate.
_MOST_TERMS = 128
#: Groups of places beyond a tile's that shared taps may reach.
_MOST_MORE = 16
#: What a multiprocessor gets from L2, and what a stage costs besides loads and products; for the choice among tiles alone.
_L2_BYTES_PER_CLOCK, _WRITTEN_BYTES_PER_CLOCK, _CLOCKS_PER_STAGE = 28, 14, 100


@gluon.jit
def _load_taps(x_tiles, x_more, w_tiles, x_parts, w_parts, full, empty, m_tiles, n_tiles, rows, low_at, chunks, steps, grid_h, grid_w,
               first_d, first_h, first_w, dil_d, dil_h, dil_w, step_d, step_h, step_w, TAPS_H: gl.constexpr, TAPS_W: gl.constexpr,
               CHANNELS: gl.constexpr, STEP: gl.constexpr, SHARED: gl.constexpr, MORE: gl.constexpr, COLS: gl.constexpr,
               PARTS: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """What `_multiply_taps` multiplies, stage by stage: channels of one tap, or of SHARED taps of a row."""
    SPAN: gl.constexpr = 8 * PIECES
    ROW_TAPS: gl.constexpr = TAPS_W // SHARED
    x_layout: gl.constexpr = x_tiles.layout
    count = 0
    for tile in range(gl.program_id(0), m_tiles * n_tiles, gl.num_programs(0)):
        from_place, from_col = tile // n_tiles * (2 * SPAN * 8), tile % n_tiles * COLS
        for step in range(steps):
            tap, chunk = step // chunks, step % chunks * STEP
            d, h, w = tap // (TAPS_H * ROW_TAPS), tap // ROW_TAPS % TAPS_H, tap % ROW_TAPS
            w_at = ((d * TAPS_H + h) * TAPS_W + w) * CHANNELS + chunk
            d, h, w = first_d + d * dil_d, first_h + h * dil_h, first_w + w * dil_w
            first = from_place + (d // step_d * grid_h + h // step_h) * grid_w + w // step_w
            x_at = ((d % step_d * step_h + h % step_h) * step_w + w % step_w) * CHANNELS + chunk
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            there = full.index(stage)
            mbarrier.expect(there, PARTS * 2 * STEP * (2 * (SPAN + MORE) * 8 + SHARED * COLS))
            for part in gl.static_range(PARTS):
                for which in gl.static_range(2):
                    place = first + which * (SPAN * 8)
                    at, to = (
                        place // SPAN + part * low_at,
                        ((stage * 2 + which) * PARTS + part) * (SPAN + MORE),
                    )
                    tile_to = x_parts.index(to)._reinterpret(gl.float16, [SPAN, 8, STEP], x_layout)
                    tma.async_copy_global_to_shared(x_tiles, [place % SPAN, at, x_at], there, tile_to)
                    if MORE > 0:
                        more_to = x_parts.index(to + SPAN)._reinterpret(gl.float16, [MORE, 8, STEP], x_layout)
                        more_from = [place % SPAN + SPAN, at, x_at]
                        tma.async_copy_global_to_shared(x_more, more_from, there, more_to)
                for shared in gl.static_range(SHARED):
                    w_to = w_parts.index((stage * PARTS + part) * SHARED + shared)
                    w_from = [from_col + part * rows, w_at + shared * CHANNELS]
                    tma.async_copy_global_to_shared(w_tiles, w_from, there, w_to)
            count += 1


@gluon.jit
def _tap_sums(x_parts, w_parts, x_at, stage, sums, SHARED: gl.constexpr, APART: gl.constexpr, LOW: gl.constexpr, STEP: gl.constexpr,
          PARTS: gl.constexpr):  # fmt: skip
    """The products of parts of one stage and 64 places, whose groups begin at x_at and LOW further; the small ones first."""
    layout: gl.constexpr = w_parts.layout
    w_at = stage * PARTS * SHARED
    if PARTS == 2:
        for tap in gl.static_range(SHARED):
            at = x_at + tap * APART
            high = x_parts.index(at)._reinterpret(gl.float16, [GROUP_ROWS, STEP], layout)
            low = x_parts.index(at + LOW)._reinterpret(gl.float16, [GROUP_ROWS, STEP], layout)
            w_high, w_low = w_parts.index(w_at + tap), w_parts.index(w_at + SHARED + tap)
            sums = warpgroup_mma(low, w_high.permute((1, 0)), sums, use_acc=tap > 0, is_async=True)
            sums = warpgroup_mma(high, w_low.permute((1, 0)), sums, is_async=True)
    for tap in gl.static_range(SHARED):
        high = x_parts.index(x_at + tap * APART)._reinterpret(gl.float16, [GROUP_ROWS, STEP], layout)
        w_high = w_parts.index(w_at + tap).permute((1, 0))
        sums = warpgroup_mma(high, w_high, sums, use_acc=tap > 0 or PARTS == 2, is_async=True)
    return warpgroup_mma_wait(0, deps=[sums])


@triton.jit
def operand(ptr, channel, to, mask, DIMS: tl.constexpr):
    """An operand of what follows: none, one value a channel, or one an element, at the output's places."""
    value = 0.0
    if DIMS == 1:
        value = tl.load(ptr + channel)
    elif DIMS > 1:
        value = tl.load(ptr + to, mask=mask, other=0.0)
    return value


@gluon.jit
def _write_places(total, from_place, from_col, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, outs, images, out_d, out_h, out_w,
           columns, grid_d, grid_h, grid_w, to_image, to_channel, to_d, to_h, to_w, HAS_BIAS: gl.constexpr, AFTER: gl.constexpr,
           ONE: gl.constexpr, TWO: gl.constexpr, LAST: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Neighboring places in order; neighboring threads write neighbors in memory, which are places and their neighbors, or channels."""
    PLACES: gl.constexpr = total.shape[0]
    COLS: gl.constexpr = total.shape[1]
    if COLS > 32:  # half by half, since registers are few
        one_half, other = total.reshape([PLACES, 2, COLS // 2]).permute([0, 2, 1]).split()
        _write_places(one_half, from_place, from_col, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, outs, images, out_d, out_h,
               out_w, columns, grid_d, grid_h, grid_w, to_image, to_channel, to_d, to_h, to_w, HAS_BIAS, AFTER, ONE, TWO, LAST, WIDE)  # fmt: skip
        _write_places(other, from_place, from_col + COLS // 2, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, outs, images, out_d,
               out_h, out_w, columns, grid_d, grid_h, grid_w, to_image, to_channel, to_d, to_h, to_w, HAS_BIAS, AFTER, ONE, TWO, LAST,
               WIDE)  # fmt: skip
        return
    near: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    last: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    layout: gl.constexpr = last if LAST else near
    total = (
        total.reshape([PLACES, COLS // WIDE, WIDE]).permute([0, 2, 1]).reshape([PLACES * WIDE, COLS // WIDE])
    )
    total = gl.convert_layout(total, layout)
    at = gl.arange(0, PLACES * WIDE, gl.SliceLayout(1, layout))
    place, neighbor = from_place + at // WIDE, at % WIDE
    x, y, z = place % grid_w, place // grid_w % grid_h, place // (grid_w * grid_h) % grid_d
    image = place // (grid_w * grid_h * grid_d)
    there = (image < images) & (z < out_d) & (y < out_h) & (x < columns) & (x * WIDE + neighbor < out_w)
    to = image.to(gl.int64) * to_image + z.to(gl.int64) * to_d + y.to(gl.int64) * to_h
    to += (x * WIDE + neighbor).to(gl.int64) * to_w
    exponent, fits = scale_exponent(gl.load(bits_ptr + image, mask=image < images, other=0))
    scale = power_of_two(exponent - 13)
    channel = from_col // WIDE + gl.arange(0, COLS // WIDE, gl.SliceLayout(0, layout))
    safe = gl.minimum(channel, outs - 1)
    # The scales one after the other: their product may be too small for a float32 where the result is not.
    if WIDE == 1:
        total *= power_of_two(gl.load(w_exponent_ptr + safe) - 13)[None, :]
    else:
        total *= power_of_two(gl.load(w_exponent_ptr + safe[None, :] * WIDE + neighbor[:, None]) - 13)
    total *= scale[:, None]
    if HAS_BIAS:
        total += gl.load(bias_ptr + safe)[None, :]
    to = to[:, None] + channel.to(gl.int64)[None, :] * to_channel
    mask = there[:, None] & (channel < outs)[None, :]
    if AFTER is not None:
        one = operand(one_ptr, safe[None, :], to, mask, ONE)
        two = operand(two_ptr, safe[None, :], to, mask, TWO)
        total = AFTER(total, one, two)
    gl.store(out_ptr + to, total, mask=mask)


@gluon.jit
def _multiply_taps(WHICH: gl.constexpr, x_parts, w_parts, full, empty, m_tiles, n_tiles, steps, bits_ptr, w_exponent_ptr, bias_ptr,
                   one_ptr, two_ptr, out_ptr, outs, images, out_d, out_h, out_w, columns, grid_d, grid_h, grid_w, to_image, to_channel,
                   to_d, to_h, to_w, HAS_BIAS: gl.constexpr, AFTER: gl.constexpr, ONE: gl.constexpr, TWO: gl.constexpr,
                   LAST: gl.constexpr, WIDE: gl.constexpr, STEP: gl.constexpr, SHARED: gl.constexpr, APART: gl.constexpr,
                   MORE: gl.constexpr, COLS: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """One group's half of the places of each tile, by all of its columns of weights."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    LOW: gl.constexpr = 8 * PIECES + MORE
    sums = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
    count = 0
    for tile in range(gl.program_id(0), m_tiles * n_tiles, gl.num_programs(0)):
        from_place, from_col = (tile // n_tiles * 2 + WHICH) * (PIECES * GROUP_ROWS), tile % n_tiles * COLS
        total = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
        more = gl.zeros([GROUP_ROWS, COLS], gl.float32, layout)
        for _ in range(steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), (count // STAGES) & 1)
            x_at = (stage * 2 + WHICH) * PARTS * LOW
            sums = _tap_sums(x_parts, w_parts, x_at, stage, sums, SHARED, APART, LOW, STEP, PARTS)
            if PIECES == 2:
                total += sums
                sums = _tap_sums(x_parts, w_parts, x_at + 8, stage, sums, SHARED, APART, LOW, STEP, PARTS)
            mbarrier.arrive(empty.index(stage))
            if PIECES == 2:
                more += sums
            else:
                total += sums
            count += 1
        # From (group of places, which of them, column) to neighboring places.
        if PIECES == 2:
            both = gl.join(total, more).reshape([8, 8, COLS, 2]).permute([1, 3, 0, 2]).reshape([128, COLS])
        else:
            both = total.reshape([8, 8, COLS]).permute([1, 0, 2]).reshape([64, COLS])
        _write_places(both, from_place, from_col, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, outs, images, out_d, out_h,
               out_w, columns, grid_d, grid_h, grid_w, to_image, to_channel, to_d, to_h, to_w, HAS_BIAS, AFTER, ONE, TWO, LAST, WIDE)  # fmt: skip


@gluon.jit(do_not_specialize=["m_tiles", "n_tiles", "rows", "low_at", "chunks", "steps", "images", "out_d", "out_h", "out_w", "columns",
                              "grid_d", "grid_h", "grid_w", "first_d", "first_h", "first_w"])  # fmt: skip
def _convolve_hopper(x_tiles, x_more, w_tiles, w_exponent_ptr, bits_ptr, bias_ptr, one_ptr, two_ptr, out_ptr,
                     m_tiles, n_tiles, rows, low_at, chunks, steps, outs, images, out_d, out_h, out_w, columns,
                     grid_d, grid_h, grid_w, first_d, first_h, first_w, dil_d, dil_h, dil_w, step_d, step_h, step_w,
                     to_image, to_channel, to_d, to_h, to_w, TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, HAS_BIAS: gl.constexpr,
                     AFTER: gl.constexpr, ONE: gl.constexpr, TWO: gl.constexpr, LAST: gl.constexpr, WIDE: gl.constexpr, CHANNELS: gl.constexpr,
                     STEP: gl.constexpr, SHARED: gl.constexpr, APART: gl.constexpr, MORE: gl.constexpr, COLS: gl.constexpr,
                     PARTS: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Tiles of two halves of 64 or 128 places (PIECES 1 or 2), and COLS columns of the weights."""
    x_groups: gl.constexpr = STAGES * 2 * PARTS * (8 * PIECES + MORE)
    x_parts = gl.allocate_shared_memory(gl.float16, [x_groups, 8, STEP], w_tiles.layout)
    w_parts = gl.allocate_shared_memory(gl.float16, [STAGES * PARTS * SHARED, COLS, STEP], w_tiles.layout)
    full, empty = barriers(STAGES)
    gl.warp_specialize(
        [
            (_multiply_taps, (0, x_parts, w_parts, full, empty, m_tiles, n_tiles, steps, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr,
                              two_ptr, out_ptr, outs, images, out_d, out_h, out_w, columns, grid_d, grid_h, grid_w, to_image,
                              to_channel, to_d, to_h, to_w, HAS_BIAS, AFTER, ONE, TWO, LAST, WIDE, STEP, SHARED, APART, MORE, COLS,
                              PARTS, PIECES, STAGES)),
            (_multiply_taps, (1, x_parts, w_parts, full, empty, m_tiles, n_tiles, steps, bits_ptr, w_exponent_ptr, bias_ptr, one_ptr,
                              two_ptr, out_ptr, outs, images, out_d, out_h, out_w, columns, grid_d, grid_h, grid_w, to_image,
                              to_channel, to_d, to_h, to_w, HAS_BIAS, AFTER, ONE, TWO, LAST, WIDE, STEP, SHARED, APART, MORE, COLS,
                              PARTS, PIECES, STAGES)),
            (_load_taps, (x_tiles, x_more, w_tiles, x_parts, w_parts, full, empty, m_tiles, n_tiles, rows, low_at, chunks, steps, grid_h,
                          grid_w, first_d, first_h, first_w, dil_d, dil_h, dil_w, step_d, step_h, step_w, TAPS_H, TAPS_W, CHANNELS,
                          STEP, SHARED, MORE, COLS, PARTS, PIECES, STAGES)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


class Plan(NamedTuple):
    """Constants of `_convolve_hopper`.

    Attributes:
        step: channels of a tap in a stage; shared: taps of a row whose input is loaded together; apart: places from one to the next;
        more: groups of eight places beyond the tile's; cols: of the weights in a tile; pieces: of 64 places in half a tile.
        clocks: that all of it takes, about.
    """

    step: int
    shared: int
    apart: int
    more: int
    cols: int
    pieces: int
    stages: int
    clocks: float


@functools.lru_cache(4096)
def plan(places, columns, channels, taps, dilation, step, parts, units):
    """The tile that takes the least time: whole rounds of tiles, and for each stage its loads from L2 or its products.

    Two programs on a multiprocessor, of which one writes while the other multiplies, were never faster (14 convolutions, H200).

    Args:
        places: of the padded images; columns: of the weights.
        taps: of each axis; dilation, step: along a row.
        units: multiprocessors.
    """
    reach = (taps[2] - 1) * dilation
    shared = taps[2] if step == 1 and 0 < reach <= _MOST_MORE and 16 * taps[2] <= _MOST_TERMS else 1
    more = triton.next_power_of_2(reach) if shared > 1 else 0
    best = None
    for (cols, pieces), k in itertools.product(((64, 2), (128, 1), (32, 2), (64, 1), (16, 2)), (64, 32, 16)):
        stage_bytes = 2 * parts * k * (128 * pieces + 16 * more + shared * cols)
        turned_bytes = 2 * 4 * 64 * pieces * min(cols, 32)
        stages = min(4, (_SHARED_BYTES - turned_bytes) // stage_bytes)
        if channels % k or stages < 2 or shared * k > _MOST_TERMS:
            continue
        loads = stage_bytes / _L2_BYTES_PER_CLOCK
        products = pieces * (2 * parts - 1) * shared * k * max(cols, 32) / 16
        clocks = (max(loads, products) + _CLOCKS_PER_STAGE) * (math.prod(taps) // shared * (channels // k))
        clocks += 2 * 64 * pieces * cols * 4 / _WRITTEN_BYTES_PER_CLOCK
        clocks *= -(-(-(-places // (128 * pieces)) * -(-columns // cols)) // units)
        if best is None or clocks < best.clocks:
            best = Plan(k, shared, dilation if shared > 1 else 0, more, cols, pieces, stages, clocks)
    return best


def convolve_hopper(
    images, w_parts, exponents, bias, taps, first, dilation, step, out, wide, after, tile, units
):
    """Write to out (a view) the convolution of `convolutions._Images` with packed weights.

    Args:
        w_parts: (parts, rows, taps * channels) float16, rows a multiple of the tile's columns; exponents: (rows,) int32.
        bias: (channels,) or None. taps: of each axis. first: place of the first tap, of each axis, in the padded images.
        dilation: from one tap to the next. step: pixels of a block that belong to different taps, of each axis.
        wide: neighbors of a row of the output that are computed together. after: `convolutions.After`, of the same view.
        tile: its `Plan`. units: multiprocessors.
    """
    count, outs = out.shape[:2]
    parts, rows = w_parts.shape[:2]
    span = 8 * tile.pieces
    grid = [size // block for size, block in zip(images.sizes, images.step, strict=True)]
    pixels, channels = math.prod(images.step), images.pixels.together * images.pixels.channels
    row, wide_row = pixels * images.pixels.channels, math.prod(step) * channels
    layouts = [gl.NVMMASharedLayout(2 * tile.step, 16, rank) for rank in (2, 3)]
    # Element (a, b, c) is channel c of row a + span * b, so strides overlap, and so do rows of two pixels. A tile's first row has any a
    # below span, and the tile takes span + more further ones: less than 64 rows beyond the last b. Low parts begin at b = rows / span.
    form = [2 * span + tile.more, parts * images.rows // span, wide_row], [row, span * row, 1]
    x_tiles, x_more = (
        GluonDescriptor(images.packed, *form, [groups, 8, tile.step], layouts[1])
        for groups in (span, tile.more or 1)
    )
    w_tiles = GluonDescriptor.from_tensor(
        w_parts.view(-1, w_parts.shape[2]), [tile.cols, tile.step], layouts[0]
    )
    m_tiles, n_tiles = -(-count * math.prod(grid) // (16 * span)), rows // tile.cols
    chunks = channels // tile.step
    launch(
        _convolve_hopper, (min(m_tiles * n_tiles, units),),
        (x_tiles, x_more, w_tiles, exponents, images.bits, out if bias is None else bias, *after.tensors(out), out),
        (
            m_tiles, n_tiles, rows, images.rows // span, chunks, math.prod(taps) // tile.shared * chunks, outs, count,
            *out.shape[2:], -(-out.shape[4] // wide), *grid, *first, *dilation, *step, *out.stride(),
        ),
        TAPS_H=taps[1], TAPS_W=taps[2], HAS_BIAS=bias is not None, **after.constants(), LAST=out.stride(1) == 1 and outs > 1, WIDE=wide, CHANNELS=channels,
        STEP=tile.step, SHARED=tile.shared, APART=tile.apart, MORE=tile.more, COLS=tile.cols, PARTS=parts, PIECES=tile.pieces,
        STAGES=tile.stages, num_warps=4,
    )  # fmt: skip
