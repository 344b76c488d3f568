"""Convolutions of float32 tensors by three float16 tensor-core products, at float32 accuracy.

One to three dimensions with stride, padding and dilation, as an implicit product of matrices: weights (output channels, taps *
channels) times patches of the input (taps * channels, pixels). A transposed convolution is one such convolution for each residue of
the output's position by the stride. The input is copied once into channels-last float16 parts with its
padding written out, scaled by a power of two per image; weights are scaled per output channel (`products.py` says how
a high and a low part hold 22 bits). Where TF32 is allowed, the product of the high parts alone has its accuracy. Images with values that no scale can hold (Inf, NaN, beyond 2^75) are computed again in float32.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.products import power_of_two, scale_exponent


@triton.jit(do_not_specialize=["count"])
def _largest(x_ptr, bits_ptr, count, image_stride, BLOCK: tl.constexpr):
    """Bits of the largest magnitude of each image, which is dense in memory."""
    image = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + image.to(tl.int64) * image_stride + at, mask=at < count, other=0.0)
    tl.atomic_max(bits_ptr + image, tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0))


@triton.jit(do_not_specialize=["channels", "depth", "height", "width", "pad_d", "pad_h", "pad_w"])
def _pack(x_ptr, bits_ptr, high_ptr, low_ptr, channels, depth, height, width, pad_d, pad_h, pad_w, padded_h, padded_w, pixels,
          image_stride, channel_stride, d_stride, h_stride, w_stride,
          CHANNELS: tl.constexpr, TILE_C: tl.constexpr, PIXELS: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """The two parts of an image, channels last and with zeros around it."""
    image = tl.program_id(2).to(tl.int64)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image))
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    w = pixel % padded_w - pad_w
    h = (pixel // padded_w) % padded_h - pad_h
    d = pixel // (padded_w * padded_h) - pad_d
    inside = (pixel < pixels) & (w >= 0) & (w < width) & (h >= 0) & (h < height) & (d >= 0) & (d < depth)
    c = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    at = d.to(tl.int64) * d_stride + h.to(tl.int64) * h_stride + w.to(tl.int64) * w_stride
    from_c = image * image_stride + c.to(tl.int64) * channel_stride
    if LAST:  # neighboring threads read neighbors in memory
        x = tl.load(
            x_ptr + at[:, None] + from_c[None, :], mask=inside[:, None] & (c < channels)[None, :], other=0.0
        )
    else:
        x = tl.load(
            x_ptr + at[None, :] + from_c[:, None], mask=inside[None, :] & (c < channels)[:, None], other=0.0
        ).T
    scaled = x * power_of_two(13 - exponent)
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    to = (image * pixels + pixel)[:, None] * CHANNELS + c[None, :]
    there = (pixel < pixels)[:, None] & (c < CHANNELS)[None, :]
    tl.store(high_ptr + to, high, mask=there)
    tl.store(low_ptr + to, low, mask=there)


@triton.jit
def _convolve(w_high_tiles, w_low_tiles, w_exponent_ptr, high_ptr, low_ptr, bits_ptr, bias_ptr, out_ptr,
              outs, pixels, out_d, out_h, out_w, padded_h, padded_w, image_size, ks,
              stride_d, stride_h, stride_w, dil_d, dil_h, dil_w, to_image, to_channel, to_d, to_h, to_w,
              TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, HAS_BIAS: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, DENSE: tl.constexpr):  # fmt: skip
    """A tile of output channels by pixels of all images; `pixels` counts those of one image."""
    channel = tl.program_id(1) * BM + tl.arange(0, BM)
    image = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) * BN + tl.arange(0, BN)
    x, y, z = pixel % out_w, (pixel // out_w) % out_h, pixel // (out_w * out_h)
    patch = ((z * stride_d * padded_h + y * stride_h) * padded_w + x * stride_w) * CHANNELS
    patch = tl.where(pixel < pixels, patch, 0)
    high_ptr += image * image_size
    low_ptr += image * image_size
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in tl.range(0, ks, BLOCK):
        k = first + tl.arange(0, BLOCK)
        tap, c = k // CHANNELS, k % CHANNELS
        shift = (
            (tap // (TAPS_W * TAPS_H)) * dil_d * padded_h + ((tap // TAPS_W) % TAPS_H) * dil_h
        ) * padded_w
        shift = (shift + (tap % TAPS_W) * dil_w) * CHANNELS + c
        x_at = patch[None, :] + shift[:, None]
        x_there = (k < ks)[:, None]
        w_high = w_high_tiles.load([tl.program_id(1) * BM, first])  # zeros beyond the weights
        x_high = tl.load(high_ptr + x_at) if EVEN else tl.load(high_ptr + x_at, mask=x_there, other=0.0)
        if PARTS == 2:
            w_low = w_low_tiles.load([tl.program_id(1) * BM, first])
            x_low = tl.load(low_ptr + x_at) if EVEN else tl.load(low_ptr + x_at, mask=x_there, other=0.0)
            part = tl.dot(w_low, x_high)
            part = tl.dot(w_high, x_low, part)
            total += tl.dot(w_high, x_high, part)
        else:
            total = tl.dot(w_high, x_high, total)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image))
    w_exponent = tl.load(w_exponent_ptr + channel, mask=channel < outs, other=0)
    total = total * power_of_two(w_exponent - 13)[:, None] * power_of_two(exponent - 13)
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel, mask=channel < outs, other=0.0)[:, None]
    if DENSE:
        place = pixel.to(tl.int64) * to_w
    else:
        place = z.to(tl.int64) * to_d + y.to(tl.int64) * to_h + x.to(tl.int64) * to_w
    to = image * to_image + channel.to(tl.int64)[:, None] * to_channel + place[None, :]
    tl.store(out_ptr + to, total, mask=(channel < outs)[:, None] & (pixel < pixels)[None, :])


@triton.jit
def _pack_weights(w_ptr, high_ptr, low_ptr, exponent_ptr, bad_ptr, outs, channels, taps, row_size, w_out, w_channel, w_tap,
                  CHANNELS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The two parts of one output channel's weights, in the order (tap, channel), with zeros up to `row_size`."""
    out = tl.program_id(0).to(tl.int64)
    ks = taps * CHANNELS
    bits = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, ks, BLOCK):
        k = first + tl.arange(0, BLOCK)
        at = out * w_out + (k % CHANNELS) * w_channel + (k // CHANNELS) * w_tap
        w = tl.load(w_ptr + at, mask=(out < outs) & (k < ks) & (k % CHANNELS < channels), other=0.0)
        bits = tl.maximum(bits, w.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    exponent, fits = scale_exponent(tl.max(bits, axis=0))
    tl.store(exponent_ptr + out, exponent)
    if fits == 0:
        tl.store(bad_ptr, 1)
    for first in range(0, row_size, BLOCK):
        k = first + tl.arange(0, BLOCK)
        at = out * w_out + (k % CHANNELS) * w_channel + (k // CHANNELS) * w_tap
        w = tl.load(
            w_ptr + at, mask=(out < outs) & (k < ks) & (k % CHANNELS < channels), other=0.0
        ) * power_of_two(13 - exponent)
        high = w.to(tl.float16)
        tl.store(high_ptr + out * row_size + k, high, mask=k < row_size)
        tl.store(low_ptr + out * row_size + k, (w - high.to(tl.float32)).to(tl.float16), mask=k < row_size)


@triton.jit
def _mend_images(x_ptr, w_ptr, bits_ptr, bad_ptr, bias_ptr, out_ptr, outs, channels, pixels, out_d, out_h, out_w, depth, height, width,
                 taps, taps_h, taps_w, stride_d, stride_h, stride_w, dil_d, dil_h, dil_w, pad_d, pad_h, pad_w,
                 image_stride, channel_stride, d_stride, h_stride, w_stride, w_out, w_channel, w_tap,
                 to_image, to_channel, to_d, to_h, to_w, HAS_BIAS: tl.constexpr, PIXELS: tl.constexpr):  # fmt: skip
    """Images or weights with values beyond the scales: each output once more, by float32 multiply-adds."""
    image = tl.program_id(1).to(tl.int64)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image))
    if (fits == 0) | (tl.load(bad_ptr) != 0):
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        out_x, out_y, out_z = pixel % out_w, (pixel // out_w) % out_h, pixel // (out_w * out_h)
        place = out_z.to(tl.int64) * to_d + out_y.to(tl.int64) * to_h + out_x.to(tl.int64) * to_w
        for out in range(outs):
            total = tl.zeros((PIXELS,), dtype=tl.float32)
            for tap in range(taps):
                w = out_x * stride_w + (tap % taps_w) * dil_w - pad_w
                h = out_y * stride_h + ((tap // taps_w) % taps_h) * dil_h - pad_h
                d = out_z * stride_d + (tap // (taps_w * taps_h)) * dil_d - pad_d
                inside = (
                    (pixel < pixels)
                    & (w >= 0)
                    & (w < width)
                    & (h >= 0)
                    & (h < height)
                    & (d >= 0)
                    & (d < depth)
                )
                at = d.to(tl.int64) * d_stride + h.to(tl.int64) * h_stride + w.to(tl.int64) * w_stride
                for c in range(channels):
                    x = tl.load(
                        x_ptr + image * image_stride + c * channel_stride + at, mask=inside, other=0.0
                    )
                    weight = tl.load(w_ptr + out * w_out + c * w_channel + tap * w_tap)
                    total += tl.where(inside, x * weight, 0.0)
            if HAS_BIAS:
                total += tl.load(bias_ptr + out)
            tl.store(out_ptr + image * to_image + out * to_channel + place, total, mask=pixel < pixels)


class _Images:
    """The input (images, channels, depth, height, width) in float16 parts, channels last, with zeros around each image.

    Attributes:
        parts: high and low, each (images, padded depth, height, width, channels padded to `channels`), flat.
        bits: of the largest magnitude of each image, (images + 1,) int32; the last is not zero where weights have no scale.
        pad: zeros before each axis; sizes: of the padded axes.
    """

    def __init__(self, x, before, after):
        images, channels = x.shape[:2]
        self.x, self.pad = x, before
        self.channels = max(4, triton.next_power_of_2(channels)) if channels < 64 else -(-channels // 64) * 64
        self.sizes = [low + size + high for low, size, high in zip(before, x.shape[2:], after, strict=True)]
        pixels = self.sizes[0] * self.sizes[1] * self.sizes[2]
        self.image_size = pixels * self.channels
        self.bits = torch.zeros(images + 1, dtype=torch.int32, device=x.device)
        self.parts = torch.empty((2, images * self.image_size), dtype=torch.float16, device=x.device)
        count = x[0].numel()
        _largest[(-(-count // 4096), images)](x, self.bits, count, x.stride(0), BLOCK=4096)
        tile = min(self.channels, 64)
        per = 2048 // tile
        _pack[(-(-pixels // per), -(-self.channels // tile), images)](
            x, self.bits, *self.parts, channels, *x.shape[2:], *before, *self.sizes[1:], pixels, *x.stride(),
            CHANNELS=self.channels, TILE_C=tile, PIXELS=per, LAST=x.stride(1) == 1,
        )  # fmt: skip

    def convolve(self, weight, bias, stride, dilation, pad, out, parts):
        """Write to out (a view) the convolution with weight (outs, channels, three axes of taps), padded by at most `self.pad`."""
        images, outs = out.shape[:2]
        taps = weight.shape[2:]
        ks = taps[0] * taps[1] * taps[2] * self.channels
        # Few output channels: small tiles, of which a multiprocessor holds several, hide each other's start and end.
        tile_m, tile_n, warps, stages = (128, 128, 8, 3) if outs > 64 else (64, 128, 4, 2)
        step = 32 if ks <= 32 else 64
        rows, row_size = -(-outs // tile_m) * tile_m, max(1, -(-ks // step)) * step
        w_parts = torch.empty((2, rows, row_size), dtype=torch.float16, device=out.device)
        exponents = torch.empty(rows, dtype=torch.int32, device=out.device)
        weight = weight.contiguous()
        count = taps[0] * taps[1] * taps[2]
        w_strides = weight.shape[1] * count, count, 1  # an axis of one tap may have any stride
        bad = self.bits[images:]
        _pack_weights[(rows,)](
            weight, *w_parts, exponents, bad, outs, weight.shape[1], count, row_size, *w_strides,
            CHANNELS=self.channels, BLOCK=1024,
        )  # fmt: skip
        w_tiles = [TensorDescriptor.from_tensor(part, [tile_m, step]) for part in w_parts]
        to_d, to_h, to_w = out.stride()[2:]
        is_dense = to_h == to_w * out.shape[4] and to_d == to_h * out.shape[3]
        first = [have - wanted for have, wanted in zip(self.pad, pad, strict=True)]
        skipped = ((first[0] * self.sizes[1] + first[1]) * self.sizes[2] + first[2]) * self.channels
        pixels = out.shape[2] * out.shape[3] * out.shape[4]
        bias_or_any = out if bias is None else bias
        _convolve[(-(-pixels // tile_n), -(-outs // tile_m), images)](
            *w_tiles, exponents, self.parts[0, skipped:], self.parts[1, skipped:], self.bits, bias_or_any, out, outs, pixels,
            *out.shape[2:], *self.sizes[1:], self.image_size, ks, *stride, *dilation, *out.stride(),
            TAPS_H=taps[1], TAPS_W=taps[2], HAS_BIAS=bias is not None, PARTS=parts, CHANNELS=self.channels,
            BM=tile_m, BN=tile_n, BLOCK=step, EVEN=ks % step == 0, DENSE=is_dense,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        _mend_images[(-(-pixels // 256), images)](
            self.x, weight, self.bits, bad, bias_or_any, out, outs, weight.shape[1], pixels, *out.shape[2:], *self.x.shape[2:],
            count, *taps[1:], *stride, *dilation, *pad, *self.x.stride(), *w_strides, *out.stride(),
            HAS_BIAS=bias is not None, PIXELS=256,
        )  # fmt: skip


def _three_axes(tensor):
    """The tensor with three spatial axes."""
    while tensor.dim() < 5:
        tensor = tensor.unsqueeze(2)
    return tensor


def _three(values, fill):
    return [fill] * (3 - len(values)) + [int(value) for value in values]


def convolution(x, weight, bias, stride, padding, dilation, out, parts=2):
    """Write the convolution of x (images, channels, spatial...) with weight (outs, channels, taps...) to out; all float32.

    Args:
        x: each image dense in memory.
        parts: 2 for float32 accuracy, 1 for that of TF32.
    """
    pad = _three(padding, 0)
    images = _Images(_three_axes(x), pad, pad)
    images.convolve(
        _three_axes(weight), bias, _three(stride, 1), _three(dilation, 1), pad, _three_axes(out), parts
    )
    return out


def transposed_convolution(x, weight, bias, stride, padding, out, parts=2):
    """Write the transposed convolution of x with weight (channels, outs, taps...) to out; dilation 1."""
    stride, padding = _three(stride, 1), _three(padding, 0)
    x, weight, out = _three_axes(x), _three_axes(weight).transpose(0, 1), _three_axes(out)
    phases = [
        [_Phase(axis, residue, stride, padding, weight, out) for residue in range(stride[axis])]
        for axis in range(3)
    ]
    before = [max(phase.pad for phase in axis) for axis in phases]
    after = [
        max(phase.last - size + 1 for phase in axis) for axis, size in zip(phases, x.shape[2:], strict=True)
    ]
    images = _Images(x, before, [max(0, size) for size in after])
    for d in phases[0]:
        for h in phases[1]:
            for w in phases[2]:
                part = weight[:, :, d.taps, h.taps, w.taps].flip(2, 3, 4)
                images.convolve(part, bias, [1, 1, 1], [1, 1, 1], [d.pad, h.pad, w.pad],
                                out[:, :, d.residue :: stride[0], h.residue :: stride[1], w.residue :: stride[2]], parts)  # fmt: skip


class _Phase:
    """The outputs of one residue along one axis: output s * q + r takes inputs q + first - j by the taps t0 + s * j."""

    def __init__(self, axis, residue, stride, padding, weight, out):
        step, size = stride[axis], weight.shape[2 + axis]
        self.residue = residue
        self.taps = slice((residue + padding[axis]) % step, None, step)
        count = len(range(size)[self.taps])
        first = (residue + padding[axis]) // step
        self.pad = count - 1 - first
        self.last = len(range(out.shape[2 + axis])[residue::step]) - 1 + first
