"""Convolutions of float32 tensors by three float16 tensor-core products, at float32 accuracy.

One to three dimensions with stride, padding and dilation, as an implicit product of matrices: weights (output channels, taps *
channels) times patches of the input (taps * channels, pixels). A transposed convolution is one such convolution for each residue of
the output's position by the stride. The input is copied once into channels-last float16 parts with its
padding written out, scaled by a power of two per image; weights are scaled per output channel (`products.py` says how
a high and a low part hold 22 bits). Pointwise operations that follow are computed before the output is written. Where TF32 is
allowed, the product of the high parts alone has its accuracy. Images with values that no scale can hold (Inf, NaN, beyond 2^75)
are computed again in float32.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from agent.kernels.gpu.geometry import Pixels, geometry_of, stored_sizes
from agent.kernels.gpu.hopper import on_hopper
from agent.kernels.gpu.hopper_convolutions import convolve_hopper, operand, plan
from agent.kernels.gpu.launching import launch
from agent.kernels.gpu.parts import power_of_two, scale_exponent
from agent.kernels.gpu.products import processors


@triton.jit(do_not_specialize=["count"])
def _largest(x_ptr, bits_ptr, count, image_stride, BLOCK: tl.constexpr):
    """Bits of the largest magnitude of each image, which is dense in memory."""
    image = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + image.to(tl.int64) * image_stride + at, mask=at < count, other=0.0)
    tl.atomic_max(bits_ptr + image, tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0))


@triton.jit(do_not_specialize=["channels", "depth", "height", "width", "pad_d", "pad_h", "pad_w"])
def _pack(x_ptr, bits_ptr, high_ptr, low_ptr, channels, depth, height, width, pad_d, pad_h, pad_w, grid_h, grid_w, pixels, tail,
          step_d, step_h, step_w, image_stride, channel_stride, d_stride, h_stride, w_stride,
          CHANNELS: tl.constexpr, TILE_C: tl.constexpr, PIXELS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """The parts of an image, channels last and with zeros around it, block by block of step_d x step_h x step_w pixels.

    The last image has a tail of zeros.
    """
    image = tl.program_id(2).to(tl.int64)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image))
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    block, of_block = pixel // (step_d * step_h * step_w), pixel % (step_d * step_h * step_w)
    w = block % grid_w * step_w + of_block % step_w - pad_w
    h = block // grid_w % grid_h * step_h + of_block // step_w % step_h - pad_h
    d = block // (grid_w * grid_h) * step_d + of_block // (step_w * step_h) - pad_d
    pixels_here = tl.where(image == tl.num_programs(2) - 1, pixels + tail, pixels)
    inside = (pixel < pixels) & (w >= 0) & (w < width) & (h >= 0) & (h < height) & (d >= 0) & (d < depth)
    c = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    at = d.to(tl.int64) * d_stride + h.to(tl.int64) * h_stride + w.to(tl.int64) * w_stride
    from_c = image * image_stride + c.to(tl.int64) * channel_stride
    # Pixels are the first axis: where the compiler knows no neighbors in memory, it has neighboring threads along that.
    there = inside[:, None] & (c < channels)[None, :]
    # Images without a scale are zeros: the weights of what a tap reads beyond an image are zeros, too, and times NaN they would not be.
    x = tl.load(x_ptr + at[:, None] + from_c[None, :], mask=there & (fits != 0), other=0.0)
    scaled = x * power_of_two(13 - exponent)
    high = scaled.to(tl.float16)
    to = (image * pixels + pixel)[:, None] * CHANNELS + c[None, :]
    there = (pixel < pixels_here)[:, None] & (c < CHANNELS)[None, :]
    tl.store(high_ptr + to, high, mask=there)
    if PARTS == 2:
        tl.store(low_ptr + to, (scaled - high.to(tl.float32)).to(tl.float16), mask=there)


@triton.jit
def _apply(out_ptr, bias_ptr, one_ptr, two_ptr, count, outs, per_channel, FILL: tl.constexpr, HAS_BIAS: tl.constexpr,
           AFTER: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Pointwise operations on an output (images, channels, places), in place; or FILL it with what they make of a bias or zero."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there, channel = at < count, (at // per_channel) % outs
    if HAS_BIAS:
        x = tl.load(bias_ptr + channel)
    elif FILL:
        x = tl.zeros((BLOCK,), dtype=tl.float32)
    else:
        x = tl.load(out_ptr + at, mask=there, other=0.0)
    if AFTER is not None:
        one, two = operand(one_ptr, channel, at, there, ONE), operand(two_ptr, channel, at, there, TWO)
        x = AFTER(x, one, two)
    tl.store(out_ptr + at, x, mask=there)


@triton.jit
def _store(out_ptr, one_ptr, two_ptr, total, from_place, from_channel, outs, images, out_d, out_h, out_w, columns, per_image,
           to_image, to_channel, to_d, to_h, to_w, AFTER: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr,
           NEAR: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Write a tile (places, columns of the weights) to the output, whose neighbors in memory are places and their neighbors."""
    total = total.reshape(BM, BN // WIDE, WIDE).permute(1, 0, 2).reshape(BN // WIDE, BM * WIDE)
    channel = from_channel + tl.arange(0, BN // WIDE)
    at = tl.arange(0, BM * WIDE)
    place = from_place + at // WIDE
    image, x = place // per_image, place % columns * WIDE + at % WIDE
    y, z = (place // columns) % out_h, (place // (columns * out_h)) % out_d
    to = image.to(tl.int64) * to_image + z.to(tl.int64) * to_d + y.to(tl.int64) * to_h + x.to(tl.int64) * to_w
    if NEAR:  # mostly; neighboring threads store neighbors, and the mask is for single elements
        to = tl.max_contiguous(to, 4)
    to = channel.to(tl.int64)[:, None] * to_channel + to[None, :]
    mask = (channel < outs)[:, None] & ((image < images) & (x < out_w))[None, :]
    if AFTER is not None:
        channel = tl.minimum(channel, outs - 1)[:, None]
        one, two = operand(one_ptr, channel, to, mask, ONE), operand(two_ptr, channel, to, mask, TWO)
        total = AFTER(total, one, two)
    tl.store(out_ptr + to, total, mask=mask)


@triton.jit
def _convolve(w_high_tiles, w_low_tiles, w_exponent_ptr, high_ptr, low_ptr, bits_ptr, bias_ptr, one_ptr, two_ptr, out_ptr,
              outs, images, out_d, out_h, out_w, columns, padded_h, padded_w, image_size, ks,
              stride_d, stride_h, stride_w, dil_d, dil_h, dil_w, to_image, to_channel, to_d, to_h, to_w,
              TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, HAS_BIAS: tl.constexpr, AFTER: tl.constexpr, ONE: tl.constexpr,
              TWO: tl.constexpr, NEAR: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
              WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """A tile of BM places of all images by BN columns of the weights; a place has WIDE neighboring outputs of a row.

    `columns` places make a row of `out_w` outputs; column n of the weights is output channel n // WIDE at neighbor n % WIDE.
    """
    per_image = out_d * out_h * columns
    from_place = tl.program_id(0) * BM
    place = from_place + tl.arange(0, BM)
    image, x = place // per_image, place % columns
    y, z = (place // columns) % out_h, (place // (columns * out_h)) % out_d
    patch = ((z * stride_d * padded_h + y * stride_h) * padded_w + x * stride_w) * CHANNELS
    first_image = from_place // per_image
    patch = tl.where(image < images, (image - first_image) * image_size + patch, 0)
    high_ptr += first_image.to(tl.int64) * image_size
    low_ptr += first_image.to(tl.int64) * image_size
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in tl.range(0, ks, BLOCK):
        k = first + tl.arange(0, BLOCK)
        tap, c = k // CHANNELS, k % CHANNELS
        shift = (
            (tap // (TAPS_W * TAPS_H)) * dil_d * padded_h + ((tap // TAPS_W) % TAPS_H) * dil_h
        ) * padded_w
        shift = (shift + (tap % TAPS_W) * dil_w) * CHANNELS + c
        x_at = patch[:, None] + shift[None, :]
        # The same for all channels of a tap, so that loads stay wide.
        x_there = (tap * CHANNELS < ks)[None, :]
        w_high = w_high_tiles.load([tl.program_id(1) * BN, first]).T  # zeros beyond the weights
        x_high = tl.load(high_ptr + x_at) if EVEN else tl.load(high_ptr + x_at, mask=x_there, other=0.0)
        if PARTS == 2:
            w_low = w_low_tiles.load([tl.program_id(1) * BN, first]).T
            x_low = tl.load(low_ptr + x_at) if EVEN else tl.load(low_ptr + x_at, mask=x_there, other=0.0)
            part = tl.dot(x_low, w_high)
            part = tl.dot(x_high, w_low, part)
            total += tl.dot(x_high, w_high, part)
        else:
            total = tl.dot(x_high, w_high, total)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image, mask=image < images, other=0))
    w_exponent = tl.load(w_exponent_ptr + column)
    total = total * power_of_two(w_exponent - 13)[None, :] * power_of_two(exponent - 13)[:, None]
    if HAS_BIAS:
        total += tl.load(bias_ptr + column // WIDE, mask=column < outs * WIDE, other=0.0)[None, :]
    _store(out_ptr, one_ptr, two_ptr, total, from_place, tl.program_id(1) * (BN // WIDE), outs, images, out_d, out_h, out_w,
           columns, per_image, to_image, to_channel, to_d, to_h, to_w, AFTER, ONE, TWO, NEAR, WIDE, BM, BN)  # fmt: skip


@triton.jit
def _weights(w_ptr, column, k, outs, channels, ks, w_out, w_channel, w_d, w_h, w_w,
             from_d, from_h, from_w, step_d, step_h, step_w, size_d, size_h, size_w,
             TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Terms k of one column of weights, in the order (tap, channel).

    Tap j of an axis is tap `from - step * j` of the weights, or zero where they have none; a neighbor starts one further.
    """
    out, neighbor = (column // WIDE).to(tl.int64), column % WIDE
    tap, c = k // CHANNELS, k % CHANNELS
    d = from_d - step_d * (tap // (TAPS_H * TAPS_W))
    h = from_h - step_h * ((tap // TAPS_W) % TAPS_H)
    w = from_w + neighbor - step_w * (tap % TAPS_W)
    there = (out < outs) & (k < ks) & (c < channels) & (d >= 0) & (d < size_d)
    there = there & (h >= 0) & (h < size_h) & (w >= 0) & (w < size_w)
    at = out * w_out + c * w_channel + d * w_d + h * w_h + w * w_w
    return tl.load(w_ptr + at, mask=there, other=0.0)


@triton.jit
def _pack_weights(w_ptr, high_ptr, low_ptr, exponent_ptr, bad_ptr, outs, channels, row_size, ks, w_out, w_channel, w_d, w_h, w_w,
                  from_d, from_h, from_w, step_d, step_h, step_w, size_d, size_h, size_w,
                  TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The two parts of one column of weights, with zeros up to `row_size`."""
    column = tl.program_id(0)
    bits = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, ks, BLOCK):
        value = _weights(w_ptr, column, first + tl.arange(0, BLOCK), outs, channels, ks, w_out, w_channel, w_d, w_h, w_w,
                         from_d, from_h, from_w, step_d, step_h, step_w, size_d, size_h, size_w, TAPS_H, TAPS_W, CHANNELS, WIDE)  # fmt: skip
        bits = tl.maximum(bits, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    exponent, fits = scale_exponent(tl.max(bits, axis=0))
    tl.store(exponent_ptr + column, exponent)
    if fits == 0:
        tl.store(bad_ptr, 1)
    for first in range(0, row_size, BLOCK):
        k = first + tl.arange(0, BLOCK)
        value = _weights(w_ptr, column, k, outs, channels, ks, w_out, w_channel, w_d, w_h, w_w,
                         from_d, from_h, from_w, step_d, step_h, step_w, size_d, size_h, size_w, TAPS_H, TAPS_W, CHANNELS, WIDE)  # fmt: skip
        value *= power_of_two(13 - exponent)
        high = value.to(tl.float16)
        to = column.to(tl.int64) * row_size + k
        tl.store(high_ptr + to, high, mask=k < row_size)
        tl.store(low_ptr + to, (value - high.to(tl.float32)).to(tl.float16), mask=k < row_size)


@triton.jit
def _mend_images(x_ptr, w_ptr, bits_ptr, bad_ptr, bias_ptr, one_ptr, two_ptr, out_ptr, outs, channels, out_d, out_h, out_w, columns, depth, height, width,
                 taps_d, taps_h, taps_w, stride_d, stride_h, stride_w, dil_d, dil_h, dil_w, pad_d, pad_h, pad_w,
                 from_d, from_h, from_w, step_d, step_h, step_w, size_d, size_h, size_w,
                 image_stride, channel_stride, d_stride, h_stride, w_stride, w_out, w_channel, w_d, w_h, w_w,
                 to_image, to_channel, to_d, to_h, to_w, HAS_BIAS: tl.constexpr, AFTER: tl.constexpr, ONE: tl.constexpr,
                 TWO: tl.constexpr, WIDE: tl.constexpr, PLACES: tl.constexpr):  # fmt: skip
    """Images or weights with values beyond the scales: each output once more, by float32 multiply-adds."""
    image = tl.program_id(1).to(tl.int64)
    exponent, fits = scale_exponent(tl.load(bits_ptr + image))
    if (fits == 0) | (tl.load(bad_ptr) != 0):
        place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
        x, y, z = place % columns, (place // columns) % out_h, place // (columns * out_h)
        for column in range(outs * WIDE):
            out, neighbor = column // WIDE, column % WIDE
            total = tl.zeros((PLACES,), dtype=tl.float32)
            for tap in range(taps_d * taps_h * taps_w):
                j_d, j_h, j_w = tap // (taps_h * taps_w), (tap // taps_w) % taps_h, tap % taps_w
                tap_d, tap_h, tap_w = (
                    from_d - step_d * j_d,
                    from_h - step_h * j_h,
                    from_w + neighbor - step_w * j_w,
                )
                if (
                    (tap_d >= 0)
                    & (tap_d < size_d)
                    & (tap_h >= 0)
                    & (tap_h < size_h)
                    & (tap_w >= 0)
                    & (tap_w < size_w)
                ):
                    w = x * stride_w + j_w * dil_w - pad_w
                    h = y * stride_h + j_h * dil_h - pad_h
                    d = z * stride_d + j_d * dil_d - pad_d
                    inside = (
                        (z < out_d)
                        & (w >= 0)
                        & (w < width)
                        & (h >= 0)
                        & (h < height)
                        & (d >= 0)
                        & (d < depth)
                    )
                    at = d.to(tl.int64) * d_stride + h.to(tl.int64) * h_stride + w.to(tl.int64) * w_stride
                    weight_at = out * w_out + tap_d * w_d + tap_h * w_h + tap_w * w_w
                    for c in range(channels):
                        value = tl.load(
                            x_ptr + image * image_stride + c * channel_stride + at, mask=inside, other=0.0
                        )
                        weight = tl.load(w_ptr + weight_at + c * w_channel)
                        total += tl.where(inside, value * weight, 0.0)
            if HAS_BIAS:
                total += tl.load(bias_ptr + out)
            along = x * WIDE + neighbor
            to = z.to(tl.int64) * to_d + y.to(tl.int64) * to_h + along.to(tl.int64) * to_w
            to += image * to_image + (image * 0 + out) * to_channel  # in 64 bits
            mask = (z < out_d) & (along < out_w)
            if AFTER is not None:
                one, two = operand(one_ptr, out, to, mask, ONE), operand(two_ptr, out, to, mask, TWO)
                total = AFTER(total, one, two)
            tl.store(out_ptr + to, total, mask=mask)


class After(NamedTuple):
    """Pointwise operations on a convolution's output.

    Attributes:
        function: a kernel's function of an element and two operands; or None.
        one, two: the operands; each None, one value a channel (channels,), or one an element, strided as the output is.
    """

    function: object = None
    one: torch.Tensor | None = None
    two: torch.Tensor | None = None

    @property
    def operands(self):
        return self.one, self.two

    def three_axes(self):
        return After(
            self.function,
            *(_three_axes(one) if one is not None and one.dim() > 1 else one for one in self.operands),
        )

    def at(self, places):
        """For some places of an output with three axes."""
        return After(
            self.function,
            *(one[places] if one is not None and one.dim() > 1 else one for one in self.operands),
        )

    def tensors(self, out):
        return [out if one is None else one for one in self.operands]

    def constants(self):
        dims = [0 if one is None else one.dim() for one in self.operands]
        return {"AFTER": self.function, "ONE": dims[0], "TWO": dims[1]}

    def apply(self, out):
        """To a dense output that something else computed."""
        return out if self.function is None else self._launch(out, out, FILL=False, HAS_BIAS=False)

    def fill(self, out, bias):
        """Write to a dense output what the operations make of a bias alone, or of zero where that is None."""
        return self._launch(out, out if bias is None else bias, FILL=True, HAS_BIAS=bias is not None)

    def _launch(self, out, bias, **constants):
        if out.numel():
            near = 1 if out.stride(1) == 1 else out[0, 0].numel()  # values of a channel beside each other
            launch(
                _apply, (-(-out.numel() // 1024),), (out, bias, *self.tensors(out)), (out.numel(), out.shape[1], near),
                **constants, **self.constants(), BLOCK=1024,
            )  # fmt: skip
        return out


NOTHING = After()


class _Images:
    """The input (images, channels, depth, height, width) in float16 parts, channels last, with zeros around each image.

    For `hopper_convolutions`, zeros behind a row are also those before the next one, and a stride's blocks of pixels lie together.

    Attributes:
        packed: rows of blocks, high parts and then low ones, (parts * rows and some more, pixels of a block * channels), flat.
        parts: views of these, each flat. pixels: `Pixels`; rows: of one part.
        bits: of the largest magnitude of each image, (images + 1,) int32; the last is not zero where weights have no scale.
        sizes: of the padded axes; step: of the blocks.
    """

    def __init__(self, x, geometry, parts):
        images, channels = x.shape[:2]
        self.x, self.geometry = x, geometry
        self.pixels = Pixels.of(channels, geometry, on_hopper(x.device))
        is_shared, stored = self.pixels.is_shared, self.pixels.channels
        self.sizes = stored_sizes(x.shape[2:], geometry, is_shared)
        self.step, tail = list(geometry.stride) if is_shared else [1, 1, 1], 0
        grid = [size // step for size, step in zip(self.sizes, self.step, strict=True)]
        block, pixels = math.prod(self.step), math.prod(self.sizes)
        if is_shared:  # the last row of the last image has no next one, and a tap may take one block more
            shared = map(min, geometry.before, geometry.behind)
            d, h, w = (-(-each // step) for each, step in zip(shared, self.step, strict=True))
            tail = ((d * grid[1] + h) * grid[2] + w + int(self.pixels.together > 1)) * block
        self.image_size = pixels * stored
        self.rows = -(-(images * pixels + tail) // (block * 32)) * 32
        self.bits = torch.zeros(images + 1, dtype=torch.int32, device=x.device)
        size, more = self.rows * block * stored, 64 * block * stored
        # A tile's last rows are read from behind all.
        self.packed = torch.empty(parts * size + more, dtype=torch.float16, device=x.device)
        self.parts = self.packed[: parts * size].view(parts, size)
        count = x[0].numel()
        launch(_largest, (-(-count // 4096), images), (x, self.bits), (count, x.stride(0)), BLOCK=4096)
        tile = min(triton.next_power_of_2(stored), 64)
        per = 2048 // tile
        launch(
            _pack, (-(-(pixels + tail) // per), -(-stored // tile), images),
            (x, self.bits, self.parts[0], self.parts[-1]),
            (channels, *x.shape[2:], *geometry.before, *grid[1:], pixels, tail, *self.step, *x.stride()),
            CHANNELS=stored, TILE_C=tile, PIXELS=per, PARTS=parts,
        )  # fmt: skip

    def convolve(self, weight, bias, taps, out, after):
        """Write to out (a view) one product with weight (outs, channels, three axes of taps).

        Args:
            taps: of each axis, see `Taps`.
            after: `After`, of the same view.
        """
        images, outs = out.shape[:2]
        parts, wide, stride = len(self.parts), self.geometry.wide, self.geometry.stride
        columns = -(-out.shape[4] // wide)
        places = out.shape[2] * out.shape[3] * columns
        if not places:
            return
        pixels, units = self.pixels, processors(out.device)
        count, dilation = [axis.count for axis in taps], [axis.apart for axis in taps]
        count[2], dilation[2], step_w = pixels.along(count[2], dilation[2], self.step[2])
        channels = pixels.together * pixels.channels  # of a tap
        ks = math.prod(count) * channels
        if pixels.is_shared:
            grid = images * math.prod(self.sizes) // math.prod(self.step)
            tile = plan(grid, outs * wide, channels, tuple(count), dilation[2], step_w, parts, units)
            tile_n, step = tile.cols, tile.step
        else:
            tile_m, tile_n, step, stages = tiles(outs * wide, ks, channels)
        rows, row_size = -(-outs * wide // tile_n) * tile_n, -(-ks // step) * step
        w_parts = torch.empty((2, rows, row_size), dtype=torch.float16, device=out.device)
        exponents = torch.empty(rows, dtype=torch.int32, device=out.device)
        bad = self.bits[images:]
        picked = [*(axis.first for axis in taps), *(axis.step for axis in taps), *weight.shape[2:]]
        launch(
            _pack_weights, (rows,), (weight, *w_parts, exponents, bad),
            (outs, weight.shape[1], row_size, ks, *weight.stride(), *picked),
            TAPS_H=count[1], TAPS_W=count[2] * pixels.together, CHANNELS=pixels.channels, WIDE=wide, BLOCK=1024,
        )  # fmt: skip
        first = [have - axis.pad for have, axis in zip(self.geometry.before, taps, strict=True)]
        bias_or_any = out if bias is None else bias
        sizes = *out.shape[2:], columns
        if pixels.is_shared:
            more = first, dilation, [*self.step[:2], step_w]
            convolve_hopper(
                self, w_parts[:parts], exponents, bias, count, *more, out, wide, after, tile, units
            )
        else:
            skipped = ((first[0] * self.sizes[1] + first[1]) * self.sizes[2] + first[2]) * channels
            w_tiles = [TensorDescriptor.from_tensor(part, [tile_n, step]) for part in w_parts]
            high, low = self.parts[0, skipped:], self.parts[-1, skipped:]
            launch(
                _convolve, (-(-images * places // tile_m), rows // tile_n),
                (*w_tiles, exponents, high, low, self.bits, bias_or_any, *after.tensors(out), out),
                (outs, images, *sizes, *self.sizes[1:], self.image_size, ks, *stride, *dilation, *out.stride()),
                TAPS_H=count[1], TAPS_W=count[2], HAS_BIAS=bias is not None, **after.constants(), NEAR=out.stride(4) == 1, PARTS=parts, CHANNELS=channels,
                WIDE=wide, BM=tile_m, BN=tile_n, BLOCK=step, EVEN=ks % step == 0, num_warps=4, num_stages=stages,
            )  # fmt: skip
        launch(
            _mend_images, (-(-places // 256), images), (self.x, weight, self.bits, bad, bias_or_any, *after.tensors(out), out),
            (
                outs, weight.shape[1], *sizes, *self.x.shape[2:], *(axis.count for axis in taps), *stride,
                *(axis.apart for axis in taps), *(axis.pad for axis in taps), *picked, *self.x.stride(), *weight.stride(), *out.stride(),
            ), HAS_BIAS=bias is not None, **after.constants(), WIDE=wide, PLACES=256,
        )  # fmt: skip


def tiles(columns, ks, channels):
    """Places and weight columns of a tile, terms of a step, and stages; chosen by trial on an H100.

    With few terms, short steps waste less of the last one, and small tiles of which a multiprocessor holds several hide each
    other's start and end.
    """
    tile_n = max(16, min(64, triton.next_power_of_2(columns)))
    if channels <= 4:
        return 128, tile_n, 16, 3
    if ks <= 160:
        return 128, tile_n, 32, 3
    return (64, 128, 64, 2) if columns > 64 else (128, tile_n, 64, 2)


def _three_axes(tensor):
    """The tensor with three spatial axes."""
    while tensor.dim() < 5:
        tensor = tensor.unsqueeze(2)
    return tensor


def convolution(x, weight, bias, stride, padding, dilation, transposed, out, parts=2, after=NOTHING):
    """Write the convolution of x (images, channels, spatial...) with weight to out; all float32.

    Args:
        x: each image dense in memory.
        weight: (outs, channels, taps...); (channels, outs, taps...) where it is transposed.
        parts: 2 for float32 accuracy, 1 for that of TF32.
    """
    whole, around = out, after
    x, weight, out, after = _three_axes(x), _three_axes(weight), _three_axes(out), after.three_axes()
    weight = weight.transpose(0, 1) if transposed else weight
    sizes = x.shape[2:], out.shape[2:], weight.shape[2:]
    geometry = geometry_of(*sizes, stride, padding, dilation, transposed, out.stride(4) == 1)
    if not geometry.is_whole:
        around.fill(whole, bias)
    images = _Images(x, geometry, parts)
    for first, taps in geometry.products:
        axes = (slice(begin, None, step) for begin, step in zip(first, geometry.step, strict=True))
        view = slice(None), slice(None), *axes
        images.convolve(weight, bias, taps, out[view], after.at(view))
    return whole
