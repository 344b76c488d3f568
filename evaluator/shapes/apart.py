"""Keeps splits apart: which shapes are near each other.

Neighboring shapes perform nearly alike, so a held-out shape next to a visible one measures tuning, not
generalization. Two shapes are near if their choices are equal and every integer dimension is within :data:`STEPS`
of its multiples (but at most a quarter: a batch of 2 is far from one of 16) or within :data:`SHARE` of the larger
value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from evaluator.shapes.space import Dims, IntegerDim, Space

STEPS = 16
SHARE = 0.03
_MOST_SHARE = 0.25


def are_near(space: Space, one: Dims, other: Dims) -> bool:
    """Whether two shapes belong on the same side."""
    for name, dim in space.items():
        if one[name] == other[name]:
            continue
        if not isinstance(dim, IntegerDim):
            return False
        a, b = int(one[name]), int(other[name])
        larger = max(a, b)
        if abs(a - b) > max(min(STEPS * dim.multiple_of, _MOST_SHARE * larger), SHARE * larger):
            return False
    return True


def octaves_between(space: Space, shape: Dims, others: Iterable[Dims]) -> float:
    """Distance to the closest of some shapes, in octaves, in the dimension that differs most; infinite if choices
    differ.
    """
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
