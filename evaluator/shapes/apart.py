"""What keeps splits apart: which shapes are near each other.

Neighboring shapes run nearly alike, so a held-out shape beside a visible one measures what was tuned, not what was learned.
Two shapes are near if their choices are equal and every integer dimension is within :data:`STEPS` of its multiples (though
no more than a quarter: a batch of 2 is far from one of 16) or within :data:`SHARE` of the larger value.
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
