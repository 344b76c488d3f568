"""Where the candidates so far are worst: a nameable group of visible shapes to ask for next.

An average that grows by one shape alone is worth little to a portfolio with a dispatcher; what pays is a kernel for the
shapes that no member serves well. A group is one side of one threshold of one dimension, or one value of a choice, so
that it can be said in a sentence and tested by the same kind of `if` that the dispatcher is made of.
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
#: A group must be this much worse than the rest, or there is nothing to say.
_WORSE = 1.05


@dataclass(frozen=True)
class Cluster:
    """A group of shapes.

    Attributes:
        words: which, for example "cols <= 256".
        shapes: their dimensions.
        geomean: geometric mean over them of the speedup that is reached there.
        rest: the same over all other shapes.
    """

    words: str
    shapes: tuple[Mapping[str, Any], ...]
    geomean: float
    rest: float

    def told(self) -> str:
        """Its words and its shapes, a line each; names and choices in them are the task's own."""
        shapes = (", ".join(f"{name}={value}" for name, value in dims.items()) for dims in self.shapes)
        return "\n".join([self.words, *shapes])


def best_by_shape(verdicts: Iterable[Verdict]) -> list[tuple[Mapping[str, Any], float]]:
    """Per visible shape the best speedup that an accepted candidate reached; the baseline counts as 1."""
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
    """Timed rows of the shapes that a proposer may see."""
    return [row for row in verdict.shapes if row.split == "visible" and row.timed and row.speedup]


def visible_geomean(verdict: Verdict, within: Sequence[Mapping[str, Any]] | None = None) -> float:
    """Geometric mean speedup over visible shapes, or over those of them in `within`; 0 without any."""
    keys = None if within is None else {dims_key(dims) for dims in within}
    speedups = [
        row.speedup or 0.0 for row in visible_rows(verdict) if keys is None or dims_key(row.dims) in keys
    ]
    return geometric_mean(speedups) if speedups else 0.0


def worst_cluster(verdicts: Iterable[Verdict]) -> Cluster | None:
    """The group of visible shapes with the lowest best speedup; None when no group is clearly worse than the rest."""
    return worst_group(best_by_shape(verdicts))


def worst_group(shapes: Sequence[tuple[Mapping[str, Any], float]]) -> Cluster | None:
    """The same for any shapes with the speedup that is reached at each."""
    if len(shapes) < 2 * _FEWEST:
        return None
    found: list[tuple[float, int, str, list[int]]] = []
    for words, inside in _groups([dims for dims, _ in shapes]):
        outside = [place for place in range(len(shapes)) if place not in inside]
        if len(inside) < _FEWEST or not outside:
            continue
        here = geometric_mean([shapes[place][1] for place in inside])
        if geometric_mean([shapes[place][1] for place in outside]) >= _WORSE * here:
            # Of groups that are about as bad the larger one is worth more.
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
