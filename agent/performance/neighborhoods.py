"""Splits of measured shapes in which no neighbor of a training shape is tested.

A split over rows tells nothing: where the same shape, or the one beside it, is on both sides, a model is asked what it was
told. So shapes that lie close to each other, directly or through others, are one neighborhood, and a neighborhood is
never divided.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from agent.performance.demand import Dims

#: Shapes closer than this in every dimension, in octaves, are neighbors: 1.09 times the size, or 8 more at a size up to 90.
NEAR_OCTAVES = 0.125
_NEAR_ELEMENTS = 8
Groups = npt.NDArray[np.int64]


def neighborhoods(shapes: Sequence[Dims]) -> Groups:
    """The number of each shape's neighborhood; shapes in other values of their choices are never neighbors."""
    sizes = [tuple(value for value in shape.values() if _is_size(value)) for shape in shapes]
    kinds = [tuple(str(value) for value in shape.values() if not _is_size(value)) for shape in shapes]
    parents = list(range(len(shapes)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    # By the first dimension, only a window of shapes must be looked at.
    order = sorted(range(len(shapes)), key=lambda index: sizes[index])
    for position, one in enumerate(order):
        for other in order[position + 1 :]:
            if sizes[one] and not _near(sizes[one][0], sizes[other][0]):
                break
            if kinds[one] == kinds[other] and all(map(_near, sizes[one], sizes[other])):
                parents[root(other)] = root(one)
    numbers: dict[int, int] = {}
    return np.array(
        [numbers.setdefault(root(index), len(numbers)) for index in range(len(shapes))], dtype=np.int64
    )


def held_out(groups: Groups, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows are held out: whole neighborhoods, drawn at random until so many of the rows are."""
    drawn = sorted(set(groups.tolist()))
    random.Random(seed).shuffle(drawn)  # noqa: S311 - a split that can be repeated
    chosen = np.zeros(len(groups), dtype=np.bool_)
    for group in drawn:
        if chosen.sum() >= share * len(groups):
            break
        chosen |= groups == group
    return chosen


def folds(groups: Groups, count: int, seed: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Masks of ``count`` parts of about one size that divide no neighborhood; fewer where there are too few of them."""
    drawn = sorted(set(groups.tolist()))
    random.Random(seed).shuffle(drawn)  # noqa: S311
    for part in range(min(count, len(drawn))):
        yield np.isin(groups, drawn[part::count])


def taken(shapes: Sequence[Dims], mask: npt.NDArray[np.bool_]) -> list[Dims]:
    """The shapes that a mask names."""
    return [shape for shape, take in zip(shapes, mask.tolist(), strict=True) if take]


def _near(one: int, other: int) -> bool:
    if abs(one - other) <= _NEAR_ELEMENTS:
        return True
    return one > 0 and other > 0 and abs(math.log2(one / other)) <= NEAR_OCTAVES


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
