"""Two questions at once, for trees: where neither pays alone and both together do.

A kernel that wins at wide rows of aligned length and loses at all others is never found by questions that are asked one at a
time: among wide rows it loses as often as it wins, and so it does among aligned ones. On an H200 a layer norm was like that.

Thousands of pairs are tried, so the best of them gains something by luck alone. How much is found out by shuffling: what members
are worth goes to other shapes of the same rows, where sizes have nothing to do with it, and a pair must gain more than there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent.dispatch.features import Feature
from agent.portfolio.table import Array

#: Fewer shapes than so many on a side of the second question say too little, where so many pairs of questions are tried.
LEAST_ROWS = 4
#: Limits that are tried for the first question about a size; the second tries all.
_LIMITS = 15
#: A pair that gains by luck alone comes out above so many shuffles once in so many and one.
_SHUFFLES = 9


class Lookahead:
    """Finds the first of two questions.

    Args:
        values: of each feature (columns) at each row.
        worth: what the reference and each member are worth at each row, weights included.
        features: what may be asked.
    """

    def __init__(self, values: npt.NDArray[np.int64], worth: Array, features: Sequence[Feature]) -> None:
        self._values = values
        self._worth = worth
        self._features = features
        self._orders = np.argsort(values, axis=0, kind="stable").T  # features x rows

    def first(self, rows: npt.NDArray[np.intp], least: float) -> tuple[int, int] | None:
        """Feature, and the value up to which rows are on its low side, of the question that gains most with a second one.

        Sides that would not gain by a second question keep their best member; each group has at least `LEAST_ROWS` rows.

        Args:
            rows: of a node.
            least: what a pair must gain over the best member alone.

        Returns:
            None where no pair gains so much, or more than by luck.
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
        """What the rows inside are worth with their best question, or without one."""
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
    """Some values, evenly among the rows, that have rows above them."""
    there = np.unique(values)[:-1]
    if len(there) <= _LIMITS:
        return [int(value) for value in there]
    shares = np.arange(1, _LIMITS + 1) / (_LIMITS + 1)
    return sorted(
        {int(value) for value in np.quantile(values, shares, method="lower") if value < values.max()}
    )
