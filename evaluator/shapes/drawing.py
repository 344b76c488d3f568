"""Shared parts of drawing shapes: a shape with the name of its stratum, the device's limits, and legal values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from evaluator.shapes.space import Dims, IntegerDim


@dataclass(frozen=True)
class Drawn:
    """A shape and why it was drawn: ``base``, ``neighbour``, ``prime`` and so on."""

    dims: Dims
    stratum: str


@dataclass(frozen=True)
class Limits:
    """What the device allows, and the hardware figures that kernels are tuned to.

    Attributes:
        fit: which of some shapes stay within the caps of memory and time.
        sizes: bytes of all inputs at each of some shapes; None if unknown without running the task.
        cap_bytes: of the inputs of a shape.
        cache_bytes: of the cache that a kernel's inputs may or may not fit in.
        processors: multiprocessors of a GPU, cores of a CPU.
    """

    fit: Callable[[list[Dims]], list[bool]]
    sizes: Callable[[list[Dims]], list[int | None]]
    cap_bytes: int
    cache_bytes: int
    processors: int


def ends(dim: IntegerDim) -> tuple[int, int]:
    """The smallest and the largest legal value."""
    return -(-dim.low // dim.multiple_of) * dim.multiple_of, dim.high // dim.multiple_of * dim.multiple_of


def octaves(dim: IntegerDim) -> tuple[float, float]:
    """Base-2 logarithms of both ends; a size of 0 counts as 1."""
    low, high = ends(dim)
    return math.log2(max(low, 1)), math.log2(max(high, 1))


def is_legal(dim: IntegerDim, value: int) -> bool:
    """Whether the dimension can have this value."""
    return dim.low <= value <= dim.high and value % dim.multiple_of == 0


def nearest(dim: IntegerDim, value: float, tier: int = 1) -> int:
    """The legal value nearest to ``value`` on the alignment tier, if the range has one there; 0 only if it is the
    end.
    """
    for step in (math.lcm(dim.multiple_of, tier), dim.multiple_of):
        first, last = -(-max(dim.low, 1) // step) * step, dim.high // step * step
        if first <= last:
            return int(min(max(round(value / step) * step, first), last))
    return ends(dim)[0]
