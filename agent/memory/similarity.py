"""Similarity of two modules, as one number that can be computed by hand.

    similarity = 0.55 operators + 0.20 reductions + 0.10 dtypes + 0.15 size          (each part 0 to 1)

- operators: weighted Jaccard, sum of minima over sum of maxima of `1 + log2(count)`; the eighth multiplication tells less
  than the first. 0 if neither shows an operator, since nothing is known then.
- reductions and dtypes: Jaccard; 1 if both are empty, since two elementwise modules are alike in that respect.
- size: 1 - distance / 4, between the five size classes.

The weights are chosen, not measured. Operators weigh most because they determine the kind of kernel; reductions come next,
because a sum over rows and a sum over columns need different kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from agent.memory.features import SIZE_CLASSES, Features

_WEIGHTS = {"operators": 0.55, "reductions": 0.20, "dtypes": 0.10, "size": 0.15}
#: Below this, two modules share little more than dtype and size (which alone give 0.25; 0.45 if neither has reductions).
LEAST = 0.5

_Key = TypeVar("_Key")


def similarity(one: Features, other: Features) -> float:
    """0 (nothing in common) to 1 (the same); symmetric."""
    sizes = [name for name, _ in SIZE_CLASSES]
    distance = abs(sizes.index(one.size_class) - sizes.index(other.size_class))
    return (
        _WEIGHTS["operators"] * _histograms(one.operators, other.operators)
        + _WEIGHTS["reductions"] * _jaccard(one.reductions, other.reductions)
        + _WEIGHTS["dtypes"] * _jaccard(one.dtypes, other.dtypes)
        + _WEIGHTS["size"] * (1 - distance / (len(sizes) - 1))
    )


def most_similar(
    wanted: Features,
    known: Iterable[tuple[_Key, Features, str]],
    limit: int,
    *,
    least: float = LEAST,
) -> list[tuple[_Key, float]]:
    """The keys of the most similar entries with their similarity, best first; at most one per group.

    A group collects near-duplicates, such as the pairs of a task that was optimized a hundred times.

    Args:
        wanted: the features to compare with.
        known: (key, features, group) of each entry; among equals the earlier one wins.
        limit: maximum number of results.
        least: minimum similarity.
    """
    rated = [(key, similarity(wanted, features), group) for key, features, group in known]
    groups = set[str]()
    chosen: list[tuple[_Key, float]] = []
    for key, score, group in sorted(rated, key=lambda row: -row[1]):
        if score < least or len(chosen) >= limit:
            break
        if group not in groups:
            groups.add(group)
            chosen.append((key, score))
    return chosen


def _histograms(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    pairs = [(_damped(one.get(name, 0)), _damped(other.get(name, 0))) for name in one.keys() | other.keys()]
    whole = sum(max(pair) for pair in pairs)
    return sum(min(pair) for pair in pairs) / whole if whole else 0.0


def _damped(count: int) -> float:
    return 1 + math.log2(count) if count > 0 else 0.0


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0
