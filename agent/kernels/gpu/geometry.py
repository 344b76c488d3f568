"""Where a convolution's taps lie: what one product reads, which outputs it computes, and how an image is stored for it."""

import itertools
import math
from typing import NamedTuple

import triton

#: With no more, a pixel's channels are too few for a tap of the copy engine's.
_FEW_CHANNELS = 8


class Taps(NamedTuple):
    """The taps of one axis that an output's place takes: input `stride * place - pad + apart * j` by tap `first - step * j`, j < count."""

    first: int
    step: int
    count: int
    pad: int
    apart: int

    @classmethod
    def plain(cls, size, padding, dilation):
        return cls(0, -1, size, padding, dilation)

    @classmethod
    def transposed(cls, size, padding, stride, residues, dilation):
        """Of the outputs `stride * place + residue`: output o takes input i by tap k where dilation * k = o + padding - stride * i.

        Several residues share their inputs, each with taps of its own: their dilation is 1.
        """
        if dilation == 1:
            low = min(-((size - 1 - padding - residue) // stride) for residue in residues)
            high = max((residue + padding) // stride for residue in residues)
            return cls(residues[0] + padding - stride * low, stride, high - low + 1, -low, 1)
        at, common = residues[0] + padding, math.gcd(stride, dilation)
        one = next((k for k in range(size) if (at - dilation * k) % stride == 0), size)
        found = range(one, size, stride // common)
        if not found:
            return cls(0, 1, 0, 0, 1)
        apart = dilation // common
        pad = apart * (len(found) - 1) - (at - dilation * found[0]) // stride
        return cls(found[-1], stride // common, len(found), pad, apart)


class Geometry(NamedTuple):
    """Where a convolution's taps lie; each value is for three axes.

    A transposed one is one product for each residue of an output's place by the stride; residues along a row, whose outputs are
    neighbors in memory, are one product where the stride is 2 or 4.

    Attributes:
        before, behind: zeros around an image that taps reach.
        places: of a product's outputs; stride: from one to the next in the input, and step in the output.
        products: the first place of the outputs of each, and its `Taps`.
        wide: neighbors of a row at each place of a product.
        is_whole: whether each output has taps; those that have none are the bias alone.
    """

    before: list
    behind: list
    places: list
    stride: list
    step: list
    products: list
    wide: int
    is_whole: bool


def geometry_of(sizes, out_sizes, taps, stride, padding, dilation, transposed, is_near):
    """`Geometry` of a convolution with up to three axes.

    Args:
        sizes, out_sizes, taps: of the input's, the output's and the weights' axes.
        is_near: whether outputs of a row are neighbors in memory.
    """
    sizes, out_sizes, taps, stride, dilation = (
        _three(one, 1) for one in (sizes, out_sizes, taps, stride, dilation)
    )
    padding = _three(padding, 0)
    if not transposed:
        plain = [Taps.plain(*one) for one in zip(taps, padding, dilation, strict=True)]
        return Geometry(padding, padding, out_sizes, stride, [1, 1, 1], [((0, 0, 0), plain)], 1, True)
    wide = stride[2] if stride[2] in (2, 4) and dilation[2] == 1 and is_near else 1
    axes = [
        [
            (first, Taps.transposed(size, pad, step, range(first, first + together), apart))
            for first in range(0, step, together)
        ]
        for size, pad, step, apart, together in zip(
            taps, padding, stride, dilation, (1, 1, wide), strict=True
        )
    ]
    before = [max(0, *(one.pad for _, one in axis)) for axis in axes]
    places = [-(-size // step) for size, step in zip(out_sizes, stride, strict=True)]
    behind = [
        max(0, *(count + one.apart * (one.count - 1) - one.pad - size for _, one in axis))
        for axis, size, count in zip(axes, sizes, places, strict=True)
    ]
    found = [
        tuple(zip(*one, strict=True))
        for one in itertools.product(*axes)
        if all(each.count > 0 for _, each in one)
    ]
    step = [stride[0], stride[1], 1 if wide > 1 else stride[2]]
    is_whole = len(found) == math.prod(map(len, axes))
    return Geometry(before, behind, places, [1, 1, 1], step, found, wide, is_whole)


def stored_sizes(sizes, geometry, is_shared):
    """Of the padded axes of an image; where zeros are shared, as many as the zeros before each axis serve behind it, too."""
    sizes = [sum(one) for one in zip(geometry.before, _three(sizes, 1), geometry.behind, strict=True)]
    if not is_shared:
        return sizes
    shared = map(min, geometry.before, geometry.behind)
    return [
        max(-(-(size - zeros) // step), count) * step
        for size, zeros, step, count in zip(sizes, shared, geometry.stride, geometry.places, strict=True)
    ]


class Pixels(NamedTuple):
    """How the pixels of an image lie in memory.

    Attributes:
        channels: of a pixel, with those that are padding.
        together: neighbors of a row that one tap reads.
        is_shared: whether zeros are shared between rows and images; see `hopper_convolutions`, whose taps have 16 channels and more.
    """

    channels: int
    together: int
    is_shared: bool

    @classmethod
    def of(cls, channels, geometry, is_hopper):
        """Of few channels, a tap takes those of two neighbors, which begin 16 bytes apart, or of all pixels of a stride.

        Of up to four, pointers read half the bytes: 0.156 and 0.182 ms with 7 x 7 taps and a stride of 2 (H200).
        """
        if channels > _FEW_CHANNELS and is_hopper:
            return cls(-(-channels // 16) * 16 if channels <= 64 else -(-channels // 32) * 32, 1, True)
        stride = geometry.stride
        are_near = stride == [1, 1, 1] or stride[2] in (2, 4)
        are_near = are_near and all(axes[2].apart == 1 for _, axes in geometry.products)
        if channels > _FEW_CHANNELS // 2 and is_hopper and are_near:
            return cls(_FEW_CHANNELS, max(2, stride[2]), True)
        padded = max(4, triton.next_power_of_2(channels)) if channels < 64 else -(-channels // 64) * 64
        return cls(padded, 1, False)

    def along(self, count, apart, stride):
        """How many taps a row has, how many places or pixels apart, and the pixels of a block that are not one tap's."""
        if self.together == 1:
            return count, apart, stride
        return -(-count // self.together), self.together // stride, 1


def _three(values, fill):
    return [fill] * (3 - len(values)) + [int(value) for value in values]
