"""Operations that look at a window of one channel or a few: average and maximum pooling, convolutions of small groups; 1 to 3 dimensions.

They are bound by memory. A program computes a tile of neighboring outputs of one channel; its taps are loads that overlap, which
the caches serve, so that the input comes from memory once.
"""

import torch
import triton
import triton.language as tl

from agent.kernels.gpu.launching import launch, repeated

MOST_TAPS = 64  # of a window; the loop over them is unrolled


@triton.jit
def _taken_all(first, w_ptr, from_d, from_h, from_w, y, x, depth, height, width, out_h, out_w, dil_d, dil_h, dil_w,
               TAPS_D: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, KIND: tl.constexpr, CHANNELS: tl.constexpr,
               MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    """The taps of a tile's windows together, (columns, rows), and how many are inside."""
    nothing: tl.constexpr = float("-inf") if KIND == "max" else 0.0
    total = tl.full((COLS, ROWS), nothing, dtype=tl.float32)
    count = tl.zeros((COLS, ROWS), dtype=tl.float32)
    for _ in tl.range(0, CHANNELS):
        for tap_d in tl.static_range(TAPS_D):
            for tap_h in tl.static_range(TAPS_H):
                for tap_w in tl.static_range(TAPS_W):
                    at = first + ((tap_d * dil_d * height + tap_h * dil_h) * width + tap_w * dil_w)
                    w = from_w + tap_w * dil_w
                    there = tl.broadcast_to(((w >= 0) & (w < width) & (x < out_w))[:, None], (COLS, ROWS))
                    if MASKED:
                        d, h = from_d + tap_d * dil_d, from_h + tap_h * dil_h
                        rows_there = ((d >= 0) & (d < depth) & (h >= 0) & (h < height) & (y < out_h))[None, :]
                        there = there & rows_there
                    value = tl.load(at, mask=there, other=nothing).to(tl.float32)
                    if KIND == "mean_inside":
                        count += there.to(tl.float32)
                    if KIND == "convolution":
                        total += value * tl.load(w_ptr + (tap_d * TAPS_H + tap_h) * TAPS_W + tap_w)
                    elif KIND == "max":
                        total = tl.maximum(total, value, propagate_nan=tl.PropagateNan.ALL)
                    else:
                        total += value
        first += depth * height * width
        w_ptr += TAPS_D * TAPS_H * TAPS_W
    return total, count


@triton.jit
def _windows(x_ptr, w_ptr, out_ptr, channels_out, repeat, depth, height, width, out_d, out_h, out_w,
             stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, divisor,
             TAPS_D: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, KIND: tl.constexpr, CHANNELS: tl.constexpr,
             APART: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    """One tile of one plane of the output (planes, out_d, out_h, out_w), from x (planes / repeat * CHANNELS, depth, height, width).

    KIND: "convolution" with the weights (CHANNELS, taps) of the plane's channel; "mean" by the divisor; "mean_inside", by the number of
    taps inside; "max".
    """
    w_tiles, h_tiles = tl.cdiv(out_w, COLS), tl.cdiv(out_h, ROWS)
    tile = tl.program_id(0).to(tl.int64)
    w_tile, h_tile = tile % w_tiles, (tile // w_tiles) % h_tiles
    plane_d = tile // (w_tiles * h_tiles)
    z, plane = plane_d % out_d, plane_d // out_d
    y = (h_tile * ROWS).to(tl.int32) + tl.arange(0, ROWS)
    x = (w_tile * COLS).to(tl.int32) + tl.arange(0, COLS)
    x_ptr += plane // repeat * CHANNELS * depth * height * width
    w_ptr += plane % channels_out * CHANNELS * TAPS_D * TAPS_H * TAPS_W
    from_d, from_h, from_w = z.to(tl.int32) * stride_d - pad_d, y * stride_h - pad_h, x * stride_w - pad_w
    # Where all rows of all windows are inside, loads need masks for columns alone, the same for all rows.
    last_d = z.to(tl.int32) * stride_d - pad_d + (TAPS_D - 1) * dil_d
    last_h = ((h_tile + 1) * ROWS - 1).to(tl.int32) * stride_h - pad_h + (TAPS_H - 1) * dil_h
    is_inside = (from_d >= 0) & (last_d < depth) & (h_tile * ROWS * stride_h >= pad_h) & (last_h < height)
    is_inside = is_inside & ((h_tile + 1) * ROWS <= out_h)
    # Columns are the first axis: where windows lie apart, the compiler knows no neighbors in memory, and has neighboring threads along that.
    first = x_ptr + from_w[:, None] + (from_d * height + from_h)[None, :] * width
    if is_inside:
        total, count = _taken_all(first, w_ptr, from_d, from_h, from_w, y, x, depth, height, width, out_h, out_w, dil_d, dil_h, dil_w,
                                  TAPS_D, TAPS_H, TAPS_W, KIND, CHANNELS, False, ROWS, COLS)  # fmt: skip
    else:
        total, count = _taken_all(first, w_ptr, from_d, from_h, from_w, y, x, depth, height, width, out_h, out_w, dil_d, dil_h, dil_w,
                                  TAPS_D, TAPS_H, TAPS_W, KIND, CHANNELS, True, ROWS, COLS)  # fmt: skip
    if KIND == "mean":
        total = total / divisor
    elif KIND == "mean_inside":
        total = total / count
    to = out_ptr + x[:, None] + ((plane * out_d + z) * out_h + y)[None, :] * out_w
    if APART:  # a thread that stored neighbors would load windows that lie apart, a warp from eight times as many lines
        to = tl.max_contiguous(to, [1, 1])
    tl.store(to, total, mask=(x < out_w)[:, None] & (y < out_h)[None, :])


@repeated
def windows(x, out, kind, taps, stride, padding, dilation, weight=None, divisor=1.0):
    """Write to out (images, channels, spatial...) the operation on x (images, channels, spatial...); both contiguous.

    Args:
        kind: see `_windows`; "convolution" takes weight (channels of out, channels of a group, taps...), contiguous.
    """
    axes = 5 - x.dim()
    one, none = [1] * axes, [0] * axes
    sizes = one + list(x.shape[2:])
    out_sizes = one + list(out.shape[2:])
    taps = one + list(taps)
    cols = min(128, triton.next_power_of_2(out_sizes[2]))
    tile = 512 if kind == "max" else 256  # tried on an H100 from 128 to 2048
    rows = min(tile // cols, triton.next_power_of_2(out_sizes[1]))
    tiles = out.shape[0] * out.shape[1] * out_sizes[0] * -(-out_sizes[1] // rows) * -(-out_sizes[2] // cols)
    if tiles:
        channels = 1 if weight is None else weight.shape[1]
        repeat = out.shape[1] * channels // x.shape[1]
        launch(
            _windows, (tiles,), (x, x if weight is None else weight, out),
            (
                out.shape[1], repeat, *sizes, *out_sizes, *one, *stride, *none, *padding,
                *one, *dilation, float(divisor),
            ),
            TAPS_D=taps[0], TAPS_H=taps[1], TAPS_W=taps[2], KIND=kind, CHANNELS=channels, APART=stride[-1] > 1,
            ROWS=rows, COLS=cols,
        )  # fmt: skip
    return out


def windows_apply(x, taps, dtypes=(torch.float32, torch.float16, torch.bfloat16)):
    """Whether `windows` can compute on x."""
    count = 1
    for size in taps:
        count *= size
    return (
        x.is_cuda and x.dtype in dtypes and 3 <= x.dim() <= 5 and x.is_contiguous() and 0 < count <= MOST_TAPS
        and x.numel() > 0 and x[0, 0].numel() < 1 << 30
    )  # fmt: skip
