"""Which kernel computes a convolution: the one of the least estimated time, or cuDNN's. Rates are measured on H100 and H200."""

import math

from agent.kernels.gpu.convolutions import convolution
from agent.kernels.gpu.direct import MOST_OUTS, direct, direct_applies
from agent.kernels.gpu.geometry import Pixels, geometry_of, stored_sizes
from agent.kernels.gpu.hopper import on_hopper
from agent.kernels.gpu.hopper_convolutions import plan
from agent.kernels.gpu.products import memory_rate, processors, with_launches

#: Of an H100 or H200 that multiplies.
CLOCK_HZ = 1.6e9
#: Outputs' residues by the stride of a transposed convolution; each is a product of three launches.
MOST_RESIDUES = 256


def kernel_for(x, weight, sizes, form, parts, spared_s):
    """The function that computes a convolution in the least estimated time, or None where cuDNN takes less.

    Args:
        sizes: of the output's axes. form: stride, padding, dilation, transposed, output_padding, groups.
        parts: 2 for float32 accuracy, 1 for that of TF32. spared_s: seconds that would be spent besides cuDNN's.
    """
    if not on_hopper(x.device):
        return None
    outs = weight.shape[1] if form[3] else weight.shape[0]
    shape = x, outs, weight.shape[2:], sizes, form, parts
    times = {
        directly: _direct_s(x, weight, sizes) if direct_applies(x, weight, form[3], sizes) else math.inf,
        by_products: _products_s(*shape),
    }
    kernel = min(times, key=times.get)
    return kernel if times[kernel] < 0.95 * (_cudnn_s(*shape) + spared_s) else None


def directly(x, weight, bias, form, out, parts, after):
    return direct(x, weight, bias, *form[:3], out, after)


def by_products(x, weight, bias, form, out, parts, after):
    return convolution(x, weight, bias, *form[:4], out, parts, after)


def _cudnn_s(x, outs, taps, sizes, form, parts):
    """Seconds that cuDNN takes in float32, by rates measured on an H100 and an H200; in TF32 where `parts` is 1.

    38 TFLOP/s, less where few terms are summed or few channels come out; two thirds with a stride; 22 in transposed ones, 12 in 3-D, and
    with a stride there 0.8e12 taps a second, 32 channels at a time; about twice these in TF32. It adds an output's terms one after the
    other, which takes 4 us and 23 ns for each, however few outputs there are. With one tap it moves 2.2 TB/s, and spends 40 ps on a pixel.

    Args:
        taps, sizes: of the weights' and the output's axes. form, parts: see `kernel_for`.
    """
    stride, _, _, transposed, *_ = form
    channels, pixels = x.shape[1], x.shape[0] * math.prod(sizes)
    count, steps = math.prod(taps), math.prod(stride)
    enough = 400 if count > 1 else 120
    rate = 38e12 * min(1.0, (channels * count / enough) ** 0.5, outs / (32 if x.dim() < 5 else 48))
    flops = 2 * pixels * outs * channels * count / (steps if transposed else 1)
    if steps > 1 and not transposed:
        rate *= 0.65
    if transposed:
        rate = min(rate, 22e12)
    if transposed and x.dim() == 5:
        rate = min(rate, 12e12 if steps == 1 else 2 * 0.8e12 * channels / steps / max(1, -(-channels // 32)))
    seconds = flops / max(rate, 1.0) / (2.2 if parts == 1 else 1)
    seconds = max(seconds, 4 * (x.numel() + pixels * outs + channels * outs * count) / memory_rate(x.device))
    if parts == 2 and not transposed:
        seconds = max(seconds, 4e-6 + 23e-9 * channels * count)
        if count == 1:
            seconds = max(seconds, 4 * (x.numel() + pixels * outs) / 2.2e12 + 40e-12 * pixels)
    return seconds


def _direct_s(x, weight, sizes):
    """Seconds of `direct` with its launch: 20 TFLOP/s with channels rounded up to a tile's, or 2.2 TB/s; 17 and 1.6 of several tiles (H200)."""
    places, outs = x.shape[0] * math.prod(sizes), weight.shape[0]
    rate, moved = (20e12, 2.2e12) if outs <= MOST_OUTS else (17e12, 1.6e12)
    padded = -(-outs // MOST_OUTS) * MOST_OUTS if outs > MOST_OUTS else max(4, 1 << (outs - 1).bit_length())
    multiplying_s = 2 * places * padded * weight[0].numel() / rate
    return with_launches(max(multiplying_s, 4 * (x.numel() + places * outs) / moved), 1)


def _products_s(x, outs, taps, sizes, form, parts):
    """Seconds of implicit products with their launches, by rates measured on an H100; infinite where they do not fit.

    The copies of the input and the weights at the memory's rate; then the products, by `plan` or for few channels at 450 TFLOP/s of float16, or
    the patches' reads from L2 at 4 TB/s if that takes longer; the output at 2.2 TB/s; and 1.5 us for each kernel, of which a product
    has three.

    Args:
        taps, sizes, form: see `_cudnn_s`.
    """
    stride, _, _, transposed, *_ = form
    images, channels = x.shape[:2]
    pixels, count, steps = images * math.prod(sizes), math.prod(taps), math.prod(stride)
    if min(x.numel(), pixels, outs) == 0 or images >= 1 << 16 or pixels >= 1 << 31:
        return math.inf
    if transposed and steps > MOST_RESIDUES:
        return math.inf
    geometry = geometry_of(x.shape[2:], sizes, taps, *form[:4], x.is_contiguous())
    lie = Pixels.of(channels, geometry, is_hopper=True)
    stored = math.prod(stored_sizes(x.shape[2:], geometry, lie.is_shared))
    # 32-bit offsets: of places, some beyond the last image, or of elements from a tile's first image.
    offsets = stored * (images if lie.is_shared else lie.channels * (128 * images // pixels + 2))
    if offsets >= (1 << 31) - (1 << 26):
        return math.inf
    packed_bytes, weights = images * stored * lie.channels * 2 * parts, channels * outs * count
    if packed_bytes > 16 * (x.numel() + pixels * outs) + (1 << 28):
        return math.inf
    ours_s = (8 * x.numel() + packed_bytes + 12 * weights) / memory_rate(x.device)
    columns = outs * geometry.wide
    for _, axes in geometry.products:
        counts = [axis.count for axis in axes]
        counts[2], *along = lie.along(counts[2], axes[2].apart, geometry.stride[2])
        if lie.is_shared:
            places, of_tap = images * stored // math.prod(geometry.stride), lie.together * lie.channels
            how = *along, parts, processors(x.device)
            ours_s += plan(places, columns, of_tap, tuple(counts), *how).clocks / CLOCK_HZ
        else:
            tile = max(16, min(64, 1 << (columns - 1).bit_length()))
            terms = (
                images * math.prod(geometry.places) * -(-columns // tile) * lie.channels * math.prod(counts)
            )
            ours_s += max(2 * (2 * parts - 1) * tile * terms / 450e12, terms * 2 * parts / 4e12)
    if not (lie.is_shared and geometry.is_whole):  # `plan` counts its outputs; others are filled in before
        ours_s += 4 * pixels * outs / 2.2e12
    products = len(geometry.products)
    return with_launches(ours_s + 1.5e-6 * (3 + 3 * products), 4 + 6 * products)
