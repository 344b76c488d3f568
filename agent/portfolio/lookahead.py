"""Looks two splits ahead: finds pairs of splits that pay together where neither pays alone.

A kernel that wins only at wide rows of aligned length cannot be found by one split at a time: it loses as often as it wins among
wide rows, and also among aligned rows. A layer norm on an H200 behaved like this.

Thousands of pairs are tried, so the best one gains something by luck alone. A permutation test measures how much: it shuffles
the members' worth among the node's shapes, which breaks any relation to sizes, and a pair must gain more than every shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent.dispatch.features import Feature
from agent.portfolio.table import Array

#: Minimum shapes on a side of a split; fewer say too little when so many pairs are tried.
LEAST_ROWS = 4
#: Limits tried per feature for the first split; the second split tries all.
_LIMITS = 15
#: A pair that gains only by luck beats all n shuffles with probability 1 / (n + 1).
_SHUFFLES = 9


class Lookahead:
    """Finds the first split of a pair.

    Args:
        values: value of each feature (columns) at each row.
        worth: weighted worth of the reference and each member (columns) at each row.
        features: features that splits may test.
    """

    def __init__(self, values: npt.NDArray[np.int64], worth: Array, features: Sequence[Feature]) -> None:
        self._values = values
        self._worth = worth
        self._features = features
        self._orders = np.argsort(values, axis=0, kind="stable").T  # features x rows

    def first(self, rows: npt.NDArray[np.intp], least: float) -> tuple[int, int] | None:
        """The feature index and limit of the split that gains most together with a second split.

        A side that does not gain from a second split keeps its best member; each group has at least `LEAST_ROWS` rows.

        Args:
            rows: the node's rows.
            least: minimum gain of a pair over the best member alone.

        Returns:
            None if no pair gains that much, or if the best pair does not beat every shuffle.
        """
        found = self._best(rows, self._worth)
        alone = float(self._worth[rows].sum(axis=0).max())
        if found is None or found[0] - alone < least:
            return None
        draw = np.random.default_rng(len(rows))
        for _ in range(_SHUFFLES):
            shuffled = self._worth.copy()
            shuffled[rows] = self._worth[draw.permutation(rows)]
            by_luck = self._best(rows, shuffled)
            if by_luck is not None and by_luck[0] >= found[0]:
                return None
        return found[1:]

    def _best(self, rows: npt.NDArray[np.intp], worth_of: Array) -> tuple[float, int, int] | None:
        best: tuple[float, int, int] | None = None
        inside = np.zeros(len(self._values), dtype=bool)
        for place in range(len(self._features)):
            values = self._values[rows, place]
            for limit in _limits(values):
                low = rows[values <= limit]
                high = rows[values > limit]
                if min(len(low), len(high)) < LEAST_ROWS:
                    continue
                worth = 0.0
                for side in (low, high):
                    inside[:] = False
                    inside[side] = True
                    worth += self._second(inside, len(side), worth_of)
                if best is None or worth > best[0] + 1e-9:
                    best = (worth, place, limit)
        return best

    def _second(self, inside: npt.NDArray[np.bool_], count: int, worth_of: Array) -> float:
        """Worth of the rows inside with their best split, or without a split if that is worth more."""
        order = self._orders[inside[self._orders]].reshape(len(self._features), count)
        sums = np.cumsum(worth_of[order], axis=1)  # features x rows x members
        whole = sums[0, -1]
        best = float(whole.max())
        if count < 2 * LEAST_ROWS:
            return best
        sorted_values = np.take_along_axis(self._values.T, order, axis=1)
        cut = slice(LEAST_ROWS - 1, count - LEAST_ROWS)
        differs = np.diff(sorted_values, axis=1)[:, cut] > 0
        worth = sums[:, cut].max(axis=2) + (whole - sums[:, cut]).max(axis=2)
        return max(best, float(worth[differs].max())) if differs.any() else best


def _limits(values: npt.NDArray[np.int64]) -> list[int]:
    """Limits to try: values at evenly spaced quantiles of the rows, below the maximum."""
    there = np.unique(values)[:-1]
    if len(there) <= _LIMITS:
        return [int(value) for value in there]
    shares = np.arange(1, _LIMITS + 1) / (_LIMITS + 1)
    return sorted(
        {int(value) for value in np.quantile(values, shares, method="lower") if value < values.max()}
    )
