"""Finds the group of visible shapes where the candidates so far are worst, as the next target.

For a portfolio with a dispatcher, a better average due to one shape is worth little; a kernel for the shapes that no member
serves well is worth more. A group is one side of a threshold on one dimension, or one value of a choice. It therefore fits in
one sentence and can be tested by the same kind of `if` that the dispatcher uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from agent.dispatch.domain import dims_key
from evaluator.verdict import ShapeResult, Verdict

_FEWEST = 2
#: Minimum ratio by which the rest must be faster than a group.
_WORSE = 1.05


@dataclass(frozen=True)
class Cluster:
    """A group of shapes.

    Attributes:
        words: the condition, for example "cols <= 256".
        shapes: their dimensions.
        geomean: geometric mean of the best speedups at these shapes.
        rest: the same over all other shapes.
    """

    words: str
    shapes: tuple[Mapping[str, Any], ...]
    geomean: float
    rest: float

    def told(self) -> str:
        """The condition and the shapes, one per line; names and choices come from the task."""
        shapes = (", ".join(f"{name}={value}" for name, value in dims.items()) for dims in self.shapes)
        return "\n".join([self.words, *shapes])


def best_by_shape(verdicts: Iterable[Verdict]) -> list[tuple[Mapping[str, Any], float]]:
    """The best speedup of any accepted candidate per visible shape; at least 1, the baseline."""
    best: dict[str, tuple[Mapping[str, Any], float]] = {}
    for verdict in verdicts:
        if verdict.verdict != "accepted":
            continue
        for row in visible_rows(verdict):
            key = dims_key(row.dims)
            known = best.get(key, (row.dims, 1.0))[1]
            best[key] = (row.dims, max(known, row.speedup or 0.0))
    return list(best.values())


def visible_rows(verdict: Verdict) -> list[ShapeResult]:
    """Timed rows of the visible shapes, which proposers may see."""
    return [row for row in verdict.shapes if row.split == "visible" and row.timed and row.speedup]


def visible_geomean(verdict: Verdict, within: Sequence[Mapping[str, Any]] | None = None) -> float:
    """Geometric mean speedup over the visible shapes, restricted to `within` if given; 0 without any."""
    keys = None if within is None else {dims_key(dims) for dims in within}
    speedups = [
        row.speedup or 0.0 for row in visible_rows(verdict) if keys is None or dims_key(row.dims) in keys
    ]
    return geometric_mean(speedups) if speedups else 0.0


def worst_cluster(verdicts: Iterable[Verdict]) -> Cluster | None:
    """The group of visible shapes with the lowest best speedup; None if no group is clearly worse than the rest."""
    return worst_group(best_by_shape(verdicts))


def worst_group(shapes: Sequence[tuple[Mapping[str, Any], float]]) -> Cluster | None:
    """Like `worst_cluster`, for any shapes with their speedups."""
    if len(shapes) < 2 * _FEWEST:
        return None
    found: list[tuple[float, int, str, list[int]]] = []
    for words, inside in _groups([dims for dims, _ in shapes]):
        outside = [place for place in range(len(shapes)) if place not in inside]
        if len(inside) < _FEWEST or not outside:
            continue
        here = geometric_mean([shapes[place][1] for place in inside])
        if geometric_mean([shapes[place][1] for place in outside]) >= _WORSE * here:
            # Among groups with about the same speedup, prefer the larger one.
            found.append((round(math.log(here), 2), -len(inside), words, inside))
    if not found:
        return None
    _, _, words, inside = min(found)
    outside = [place for place in range(len(shapes)) if place not in inside]
    return Cluster(
        words,
        tuple(shapes[place][0] for place in inside),
        geometric_mean([shapes[place][1] for place in inside]),
        geometric_mean([shapes[place][1] for place in outside]),
    )


def _groups(shapes: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[int]]]:
    names = [name for name in shapes[0] if all(name in dims for dims in shapes)]
    for name in names:
        values = [dims[name] for dims in shapes]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            for limit in sorted(set(values))[:-1]:
                yield f"{name} <= {limit}", [place for place, value in enumerate(values) if value <= limit]
                yield f"{name} > {limit}", [place for place, value in enumerate(values) if value > limit]
        else:
            for choice in sorted({str(value) for value in values}):
                yield (
                    f"{name} = {choice}",
                    [place for place, value in enumerate(values) if str(value) == choice],
                )
