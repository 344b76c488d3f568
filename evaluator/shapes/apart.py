"""What keeps splits apart: which shapes are near each other, and the region that only held-out shapes visit.

Neighbouring shapes run nearly alike, so a held-out shape beside a visible one measures what was tuned, not what was learned.
Two shapes are near if their choices are equal and every integer dimension is within :data:`STEPS` of its multiples or
within :data:`SHARE` of the larger value. A run of neighbours (-1, +1, +8) is always near its base point.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from evaluator.shapes.drawing import ends, octaves
from evaluator.shapes.space import Dims, IntegerDim, Space

STEPS = 16
SHARE = 0.03
#: Octaves that a dimension spans at least before one of them is withheld.
_LEAST_OCTAVES = 4


def are_near(space: Space, one: Dims, other: Dims) -> bool:
    """Whether two shapes belong on the same side."""
    for name, dim in space.items():
        if one[name] == other[name]:
            continue
        if not isinstance(dim, IntegerDim):
            return False
        a, b = int(one[name]), int(other[name])
        if abs(a - b) > max(STEPS * dim.multiple_of, SHARE * max(a, b)):
            return False
    return True


def octaves_between(space: Space, shape: Dims, others: Iterable[Dims]) -> float:
    """How far the closest of some shapes is: in its dimension that differs most, in octaves; infinite where choices differ."""
    return min((_distance(space, shape, other) for other in others), default=math.inf)


def _distance(space: Space, one: Dims, other: Dims) -> float:
    most = 0.0
    for name, dim in space.items():
        if isinstance(dim, IntegerDim):
            a, b = (math.log2(max(int(shape[name]), 1)) for shape in (one, other))
            most = max(most, abs(a - b))
        elif one[name] != other[name]:
            return math.inf
    return most


@dataclass(frozen=True)
class Region:
    """Values of one dimension from ``low`` to ``high``, both included."""

    name: str
    low: int
    high: int

    def holds(self, shape: Dims) -> bool:
        """Whether a shape lies in it."""
        return self.low <= int(shape[self.name]) <= self.high


def withheld_region(space: Space, digest: str) -> Region | None:
    """One octave of one dimension, the same for a task at all times; None where no dimension spans four octaves.

    Wide ones, if there are any; neither the lowest octave, since a size of one is a special case that everybody has, nor the one of the default, which is
    the shape that the task's author shows.
    """
    possible: list[Region] = []
    for name, dim in space.items():
        if not isinstance(dim, IntegerDim):
            continue
        low, high = octaves(dim)
        count = math.floor(high - low)
        first = max(ends(dim)[0], dim.multiple_of)
        for number in range(1, count if count >= _LEAST_OCTAVES else 0):
            end = first << number + 1
            # The largest value of all ends the last octave, it does not begin one.
            region = Region(name, end // 2, end if end == ends(dim)[1] else end - 1)
            if not region.low <= dim.default <= region.high:
                possible.append(region)
    # Of a narrower one, every shape may be near one outside.
    wide = [region for region in possible if region.high - region.low > 2 * STEPS * _step(space, region.name)]
    return random.Random(f"withheld:{digest}").choice(wide or possible) if possible else None


def _step(space: Space, name: str) -> int:
    dim = space[name]
    return dim.multiple_of if isinstance(dim, IntegerDim) else 1
