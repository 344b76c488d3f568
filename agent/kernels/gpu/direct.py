"""Convolutions of few channels, by float32 multiply-adds: tensor cores would multiply tiles of which most are padding.

A thread has several outputs of a place, all of the tile's channels, so that an input that it loads serves all of these. Nothing is
copied, and the sums are those of a float32 convolution that adds its terms in their order.
"""

import math

import triton
import triton.language as tl

from agent.kernels.gpu.hopper_convolutions import operand
from agent.kernels.gpu.launching import launch

#: Channels of a tile, and taps along a row, whose loop is unrolled.
MOST_OUTS, MOST_DIRECT_TAPS = 16, 16
#: Channels in, and where each is read once, at one tap. With 16 of one tap it is slower than cuDNN.
MOST_IN, MOST_IN_OF_ONE_TAP = 4, 8


@triton.jit(do_not_specialize=["channels", "depth", "height", "out_d", "out_h", "pad_d", "pad_h", "pad_w"])
def _direct(x_ptr, w_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, places, outs, channels, depth, height, width, out_d, out_h, out_w,
            stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, taps_d, taps_h, image_size, to_image, to_channel,
            TAPS_W: tl.constexpr, PADDED: tl.constexpr, HAS_BIAS: tl.constexpr, AFTER: tl.constexpr, ONE: tl.constexpr,
            TWO: tl.constexpr, PLACES: tl.constexpr, OUTS: tl.constexpr):  # fmt: skip
    """A tile of places of all images by OUTS channels; all contiguous."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    column, row = place % out_w, place // out_w % out_h
    slab, image = place // (out_w * out_h) % out_d, (place // (out_w * out_h * out_d)).to(tl.int64)
    w, h, d = column * stride_w - pad_w, row * stride_h - pad_h, slab * stride_d - pad_d
    first = tl.where(place < places, image * image_size + (d * height + h) * width + w, 0)
    at = x_ptr + first[:, None]
    channel = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    is_out = channel < outs
    w_at = w_ptr + (channel * (channels * taps_d * taps_h * TAPS_W))[None, :]
    total = tl.zeros((PLACES, OUTS), dtype=tl.float32)
    for c in range(channels):
        for tap_d in range(taps_d):
            for tap_h in range(taps_h):
                shift = c * (depth * height * width) + (tap_d * dil_d * height + tap_h * dil_h) * width
                if PADDED:
                    row_there = (d + tap_d * dil_d >= 0) & (d + tap_d * dil_d < depth) & (place < places)
                    row_there = row_there & (h + tap_h * dil_h >= 0) & (h + tap_h * dil_h < height)
                for tap_w in tl.static_range(TAPS_W):
                    if PADDED:
                        there = row_there & (w + tap_w * dil_w >= 0) & (w + tap_w * dil_w < width)
                        x = tl.load(at + (shift + tap_w * dil_w), mask=there[:, None], other=0.0)
                    else:
                        x = tl.load(at + (shift + tap_w * dil_w))
                    total += x * tl.load(w_at + tap_w, mask=is_out[None, :], other=0.0)
                w_at += TAPS_W
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel, mask=is_out, other=0.0)[None, :]
    to = image * to_image + (slab * out_h + row) * out_w + column
    to = to[:, None] + (channel * to_channel)[None, :]
    mask = (place < places)[:, None] & is_out[None, :]
    if AFTER is not None:
        one = operand(one_ptr, tl.minimum(channel, outs - 1)[None, :], to, mask, ONE)
        two = operand(two_ptr, tl.minimum(channel, outs - 1)[None, :], to, mask, TWO)
        total = AFTER(total, one, two)
    tl.store(out_ptr + to, total, mask=mask)


def direct(x, weight, bias, stride, padding, dilation, out, after):
    """Write the convolution of x (images, channels, spatial...) with weight (outs, channels, taps...) to out; all contiguous float32.

    Args:
        after: `After`.
    """
    axes = 5 - x.dim()
    one, none = [1] * axes, [0] * axes
    outs, taps = weight.shape[0], one + list(weight.shape[2:])
    places = out.numel() // outs
    # By trial on an H200: where there are few places, small tiles reach more multiprocessors.
    tile = 1024 if places > 1 << 18 else 256
    launch(
        _direct, (-(-places // tile), -(-outs // MOST_OUTS)), (x, weight, out if bias is None else bias, *after.tensors(out), out),
        (
            places, outs, x.shape[1], *one, *x.shape[2:], *one, *out.shape[2:], *one, *stride, *none, *padding, *one, *dilation,
            *taps[:2], x.stride(0), out.stride(0), out.stride(1),
        ), TAPS_W=taps[2], PADDED=any(padding), HAS_BIAS=bias is not None, **after.constants(), PLACES=tile,
            OUTS=min(MOST_OUTS, max(4, triton.next_power_of_2(outs))),
    )  # fmt: skip
    return out


def direct_applies(x, weight, transposed, out_sizes):
    """Whether `direct` can compute a convolution of x: few channels and taps, and 32-bit offsets within an image and of places."""
    if (
        transposed
        or not (x.is_contiguous() and weight.is_contiguous())
        or min(x.numel(), weight.numel(), *out_sizes) < 1
    ):
        return False
    outs, places = weight.shape[0], math.prod(out_sizes)
    is_small = max(x[0].numel(), outs * places, x.shape[0] * places) < (1 << 31) - 1024
    is_few = x.shape[1] <= (MOST_IN if weight[0, 0].numel() > 1 else MOST_IN_OF_ONE_TAP)
    return is_few and is_small and weight.shape[-1] <= MOST_DIRECT_TAPS
