"""Finds sizes with less throughput than neighboring sizes predict, and describes them in words.

The prediction for a size is a plane fitted to the logarithms of its nearest neighbors' rates (without its own), since rates
rise with size until the machine is saturated and a size is not bad for being small. A size that reaches less than seven
tenths of its prediction is bad. Bad sizes near each other form one region, described by a property that they share and most
other sizes lack: a dimension that is odd, not divisible by 8, or just above a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.performance.rate_map import Point, Points
from evaluator.counting import counted

#: A size below this share of its prediction is bad.
BAD = 0.7
_NEIGHBORS = 10
#: Maximum distance in octaves between neighboring bad sizes of one region.
_REGION_OCTAVES = 1.0
#: A property explains a region if at most this share of the other shapes has it.
_COMMON = 0.5
_MOST_SENTENCES = 6
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Region:
    """Bad sizes near each other.

    Attributes:
        points: the shapes.
        shares: rate of each shape over its prediction.
        why: their common property in words; empty if there is none.
    """

    points: tuple[Point, ...]
    shares: tuple[float, ...]
    why: str


def sentences(found: Points) -> list[str]:
    """The text beside the map: bad regions of the reference and of the optimized module, and shapes where that is slower."""
    if len(found.points) < _least(found):
        few = f"{len(found.points)} timed shapes are too few to tell a bad size from its neighbors"
        return [f"{few} ({_least(found)} would do)."]
    said = []
    for optimized, who in ((False, "The reference"), (True, "The optimized module")):
        regions = bad_regions(found, optimized=optimized)
        said += [_sentence(found, who, region) for region in regions[:_MOST_SENTENCES]]
        if len(regions) > _MOST_SENTENCES:
            said.append(f"{who} has {counted(len(regions) - _MOST_SENTENCES, 'more such region')}.")
        if not regions:
            said.append(
                f"{who} reaches at least {BAD:.0%} of what neighboring sizes promise at every timed shape."
            )
    slower = [point for point in found.points if point.decision == "slower"]
    if slower:
        shapes = "; ".join(_shape(point) for point in slower[:_MOST_SENTENCES])
        more = f" and {len(slower) - _MOST_SENTENCES} more" if len(slower) > _MOST_SENTENCES else ""
        said.append(f"Confidently slower than the reference: {shapes}{more}.")
    return said


def bad_regions(found: Points, *, optimized: bool) -> list[Region]:
    """Regions of bad sizes, the worst first; none if there are too few shapes to tell."""
    if len(found.points) < _least(found):
        return []
    logs = np.log2([[max(size, 1) for size in point.sizes] for point in found.points])
    rates = np.log([point.rate(optimized=optimized) for point in found.points])
    shares = np.exp(rates - _expected(logs, rates))
    bad = [int(index) for index in np.flatnonzero(shares < BAD)]
    regions = []
    for group in _near_each_other(logs, bad):
        inside = [found.points[index] for index in group]
        others = [point for index, point in enumerate(found.points) if index not in bad]
        regions.append(
            Region(tuple(inside), tuple(float(shares[index]) for index in group), _why(found, inside, others))
        )
    return sorted(regions, key=lambda region: min(region.shares))


def _expected(logs: Vector, rates: Vector) -> Vector:
    """The logarithm of the rate that the neighbors of each shape predict."""
    count = min(_NEIGHBORS, len(rates) - 1)
    steps = logs[None, :, :] - logs[:, None, :]  # [shape, other shape, size]
    distances = np.abs(steps).max(axis=2)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :count]
    closeness = 1.0 / (0.5 + np.take_along_axis(distances, near, axis=1))
    beside = np.take_along_axis(steps, near[:, :, None], axis=1)
    matrix = np.concatenate([np.ones((*near.shape, 1)), beside], axis=2)
    # A small ridge penalty on the slopes, since neighbors may be collinear.
    pull = np.diag([0.0] + [0.05] * logs.shape[1])
    weights = closeness
    # Refit with less weight on outliers: another bad size must not lower the prediction.
    for _ in range(3):
        weighted = (matrix * weights[:, :, None]).swapaxes(1, 2)
        solution = np.linalg.solve(weighted @ matrix + pull, weighted @ rates[near][:, :, None])
        off = rates[near] - (matrix @ solution)[:, :, 0]
        weights = closeness / (1.0 + (off / 0.2) ** 2)
    # Do not extrapolate the slope: cap the prediction at the fastest neighbor.
    found: Vector = np.minimum(solution[:, 0, 0], rates[near].max(axis=1))
    return found


def _near_each_other(logs: Vector, indices: Sequence[int]) -> list[list[int]]:
    left, groups = list(indices), []
    while left:
        group, edge = [], [left.pop(0)]
        while edge:
            one = edge.pop()
            group.append(one)
            near = [index for index in left if np.abs(logs[index] - logs[one]).max() <= _REGION_OCTAVES]
            left = [index for index in left if index not in near]
            edge += near
        groups.append(sorted(group))
    return groups


def _why(found: Points, inside: Sequence[Point], others: Sequence[Point]) -> str:
    reasons = []
    for index, name in enumerate(found.names):
        for has, words in _PROPERTIES:
            if all(has(point.sizes[index]) for point in inside):
                common = sum(has(point.sizes[index]) for point in others) / max(len(others), 1)
                if common <= _COMMON:
                    reasons.append(f"{name} is {words}")
                break  # an odd size is also not divisible by 8: the first property that holds is the most specific
    return " and ".join(reasons)


def _above_power_of_two(size: int) -> bool:
    return size > 16 and size & (size - 1) != 0 and size - (1 << (size.bit_length() - 1)) <= max(size >> 5, 1)


_PROPERTIES: tuple[tuple[Callable[[int], bool], str], ...] = (
    (_above_power_of_two, "just above a power of two"),
    (lambda size: size % 2 == 1, "odd"),
    (lambda size: size % 8 != 0, "not divisible by 8"),
)


def _sentence(found: Points, who: str, region: Region) -> str:
    low, high = min(region.shares), max(region.shares)
    share = f"{low:.0%}" if round(100 * low) == round(100 * high) else f"{low:.0%} to {high:.0%}"
    if len(region.points) == 1:
        where = _shape(region.points[0])
    else:
        spans = (
            _span(name, [point.sizes[index] for point in region.points])
            for index, name in enumerate(found.names)
        )
        where = f"{len(region.points)} shapes with {', '.join(spans)}"
    why = f", where {region.why}" if region.why else ""
    return f"{who} reaches {share} of what neighboring sizes promise at {where}{why}."


def _span(name: str, sizes: Iterable[int]) -> str:
    ordered = sorted(sizes)
    return f"{name} {ordered[0]}" if ordered[0] == ordered[-1] else f"{name} {ordered[0]} to {ordered[-1]}"


def _shape(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.dims.items())


def _least(found: Points) -> int:
    """Minimum number of shapes: a plane needs one more than there are dimensions, plus some residual degrees of freedom."""
    return len(found.names) + 5
