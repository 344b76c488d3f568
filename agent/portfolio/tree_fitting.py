"""Grows the dispatch tree: adds only splits that pay, and uses a member only where it is not confidently slower.

A leaf uses a member if the lower bound of its speedup over the best baseline, pooled over the leaf's shapes, is above 1 and
no shape there is confidently more than 2 % slower. If no member qualifies, the leaf runs the reference or something faster than
it: a deployable baseline such as a compiler mode, or a candidate proven faster than the reference. A split must gain more than
1 % over its shapes (less if there are many shapes) and more than twice the standard error of that gain; otherwise timing noise
makes zigzag boundaries. A shape that is confidently slower than the best baseline costs more than its loss. The result is
deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.dispatch.features import KINDS, Feature, Point
from agent.dispatch.tree import Leaf, Node, Split, simplified
from agent.performance.money import energy_aware
from agent.portfolio.lookahead import Lookahead
from agent.portfolio.table import Array, Table, bounds, reference_errors
from evaluator.counting import counted

Rows = npt.NDArray[np.intp]

MOST_DEPTH = 6
_LEAST_GAIN = math.log(1.01)
#: Minimum gain of a pair of splits that pays only together.
_LEAST_GAIN_OF_TWO = math.log(1.02)
#: Above this number of shapes the minimum gain shrinks in proportion: a gain over more shapes is less likely to be luck.
_FEW_SHAPES = 64
_NOISE_FACTOR = 2.0
#: A leaf refuses a member if one of its shapes is confidently slower than this.
_CONFIDENTLY_SLOWER = math.log(0.98)
#: Penalty on top of such a shape's loss: users were promised a fallback, and an equal gain elsewhere does not make up for it.
_BROKEN_PROMISE = math.log(1.05)
_Z975 = 1.96
#: Number of splits evaluated with all conditions, after a first pass ranked all splits without them.
_FINALISTS = 12


@dataclass(frozen=True)
class Choice:
    """The candidate that a leaf would use.

    Attributes:
        column: its column in the table; None for the reference.
        value: weighted mean of its log speedup over the leaf's shapes, minus the penalties for confident losses.
        why: the measurements in words.
        faster: whether it is confidently faster than the best baseline.
    """

    column: int | None
    value: float
    why: str
    faster: bool


class TreeFitter:
    """Grows trees over the members of one table.

    Args:
        table: the measurements.
        members: columns that leaves may use.
        points: the table's rows as calls.
        features: features that splits may test.
        most_depth: maximum number of splits on a path.
    """

    def __init__(
        self,
        table: Table,
        members: Sequence[int],
        points: Sequence[Point],
        features: Sequence[Feature],
        most_depth: int = MOST_DEPTH,
    ) -> None:
        self._table = table
        self._members = list(members)
        self._features = list(features)
        self._most_depth = most_depth
        share = min(1.0, _FEW_SHAPES / max(len(table.shapes), 1))
        self._least_gain, self._least_gain_of_two = _LEAST_GAIN * share, _LEAST_GAIN_OF_TWO * share
        self._values = np.array(
            [[feature.value(point) for feature in features] for point in points], dtype=np.int64
        ).reshape(len(points), len(features))
        self._reference_errors = reference_errors(table)
        gains = np.column_stack([table.reference, table.gains[:, self._members]])
        errors = np.column_stack([self._reference_errors, table.errors[:, self._members]])
        slower = gains + _Z975 * errors < _CONFIDENTLY_SLOWER  # False for NaN, where nothing was timed
        expected = np.column_stack([table.reference, table.expected[:, self._members]])
        #: Log speedup minus penalty at each shape; the first column is the reference.
        self._worth = expected - _BROKEN_PROMISE * slower
        self._lookahead = Lookahead(self._values, self._worth * table.weights[:, None], self._features)

    def grow(self) -> Node:
        """Grow the tree; its leaves hold columns of the table."""
        return simplified(self._node(np.arange(len(self._table.shapes)), self._most_depth)[0])

    def choose(self, rows: Rows) -> Choice:
        """Choose the candidate for a leaf over these rows of the table."""
        table, weights = self._table, self._table.weights[rows]
        total = weights.sum()
        reference = float(weights @ self._worth[rows, 0] / total)
        said = self._said(float(weights @ table.reference[rows] / total), len(rows), "the reference")
        best = Choice(None, reference, said, False)
        second = best
        proved: list[Choice] = []
        for place, column in enumerate(self._members, start=1):
            gains, errors = table.gains[rows, column], table.errors[rows, column]
            if np.isnan(gains).all():
                continue
            value = float(weights @ self._worth[rows, place] / total)
            # A task with a single shape needs no margin for shapes that were not timed.
            single = 0.0 if len(table.shapes) == 1 else math.log(1.05)
            mean, low = bounds(gains, errors, weights, single=single)
            measured = int((~np.isnan(gains)).sum())
            slower = bool(np.any(gains + _Z975 * errors < _CONFIDENTLY_SLOWER))
            if low > 0 and not slower:
                proved.append(Choice(column, value, self._said(mean, measured, low=low), True))
            if value > second.value and self._better_than_reference(rows, column, value - reference):
                second = Choice(
                    column, value, self._said(mean, measured, "the best that is to be had"), False
                )
        return self._preferred(proved) if proved else second

    def _preferred(self, proved: Sequence[Choice]) -> Choice:
        """The fastest choice; among choices that tie with it, the one with the least measured energy."""
        choices = {str(choice.column): choice for choice in proved}
        joules = {
            str(choice.column): known
            for choice in proved
            if choice.column is not None
            and (known := self._table.entries[choice.column].relative_joules) is not None
        }
        return choices[energy_aware({name: math.exp(-one.value) for name, one in choices.items()}, joules)]

    def _better_than_reference(self, rows: Rows, column: int, lead: float) -> bool:
        """Whether a column may run in place of the reference.

        Its mean lead decides for a deployable baseline, which users can check themselves; for others, the lead's lower bound.
        No shape may be confidently slower.
        """
        table = self._table
        over = np.hypot(table.errors[rows, column], self._reference_errors[rows])
        leads = table.gains[rows, column] - table.reference[rows]
        if np.any(leads + _Z975 * over < _CONFIDENTLY_SLOWER):
            return False
        if table.deployable(column):
            return lead > self._least_gain
        return bounds(leads, over, table.weights[rows], single=0.0)[1] > 0

    def _said(self, value: float, shapes: int, what: str = "", low: float | None = None) -> str:
        over = f"over {counted(shapes, 'shape')}"
        if low is None:
            return f"nothing is confidently faster than the best baseline there; {what}: {math.exp(value):.2f}x {over}"
        return f"{math.exp(value):.2f}x the best baseline {over}, at least {math.exp(low):.2f}x with 95 % confidence"

    def _node(self, rows: Rows, left: int) -> tuple[Node, float]:
        """The subtree for these rows, and the mean log speedup of its leaves.

        A split may be chosen by the best member on each side without proof, since a win that must hold at all shapes of a node
        rarely shows before the node is small. A leaf without a proven member falls back, and a split that then gains less than
        1 % is dropped.
        """
        here = self.choose(rows)
        leaf = Leaf(here.column, here.why, here.faster)
        found = self._best_split(rows, here) if left > 0 else None
        if found is None:
            return leaf, here.value
        place, limit = found
        low = self._low(rows, place, limit)
        weights = self._table.weights
        share = float(weights[rows[low]].sum() / weights[rows].sum())
        below, value = self._node(rows[low], left - 1)
        above, other = self._node(rows[~low], left - 1)
        together = share * value + (1 - share) * other
        if together - here.value < self._least_gain:
            return leaf, here.value
        return Split(self._features[place], limit, below, above), together

    def _low(self, rows: Rows, place: int, limit: int) -> npt.NDArray[np.bool_]:
        values = self._values[rows, place]
        low: npt.NDArray[np.bool_] = values == 1 if self._features[place].is_condition else values <= limit
        return low

    def _best_split(self, rows: Rows, here: Choice) -> tuple[int, int] | None:
        """The split that gains most with proven choices; if none gains enough, the best with unproven choices, then a pair's first."""
        promising = self._promising(rows)
        for now, choose in ((here, self.choose), (self._hoped(rows), self._hoped)):
            best: tuple[float, int, int] | None = None
            for place, limit in promising:
                low = self._low(rows, place, limit)
                sides = [(side, choose(side)) for side in (rows[low], rows[~low])]
                gain, noise = self._gain(rows, now, sides)
                if gain > max(self._least_gain, _NOISE_FACTOR * noise) and (
                    best is None or gain > best[0] + 1e-9
                ):
                    best = (gain, place, limit)
            if best is not None:
                return best[1:]
        return self._first_of_two(rows)

    def _first_of_two(self, rows: Rows) -> tuple[int, int] | None:
        """The first split of a pair that is expected to gain together what neither gains alone."""
        least = self._least_gain_of_two * float(self._table.weights[rows].sum())
        found = self._lookahead.first(rows, least) if self._features else None
        if found is None:
            return None
        place, limit = found
        if self._features[place].is_condition:
            return place, 0
        above = int(self._values[rows, place][self._values[rows, place] > limit].min())
        return place, limit_between(limit, above)

    def _hoped(self, rows: Rows) -> Choice:
        """The choice of a leaf if no proof were required."""
        weights = self._table.weights[rows]
        means = weights @ self._worth[rows] / weights.sum()
        place = int(np.argmax(means))
        return Choice(self._members[place - 1] if place else None, float(means[place]), "", False)

    def _gain(self, rows: Rows, here: Choice, sides: Sequence[tuple[Rows, Choice]]) -> tuple[float, float]:
        """A split's gain over these rows as a mean log ratio, and its standard error."""
        table, total = self._table, self._table.weights[rows].sum()
        gain, variance = -here.value, 0.0
        for side, choice in sides:
            weights = table.weights[side] / total
            gain += choice.value * float(weights.sum())
            if choice.column != here.column:
                squares = self._squares(side, choice.column) + self._squares(side, here.column)
                variance += float(weights**2 @ squares)
        return gain, math.sqrt(variance)

    def _squares(self, rows: Rows, column: int | None) -> Array:
        errors = self._reference_errors[rows] if column is None else self._table.errors[rows, column]
        squares: Array = np.nan_to_num(errors, nan=float(self._reference_errors.max())) ** 2
        return squares

    def _promising(self, rows: Rows) -> list[tuple[int, int]]:
        """The best splits by the worth of each side's best member without proof; ties go to the simpler feature."""
        gains = self._worth[rows] * self._table.weights[rows, None]
        everything = gains.sum(axis=0)
        found: list[tuple[float, int, int, int]] = []
        for place, feature in enumerate(self._features):
            values = self._values[rows, place]
            order = np.argsort(values, kind="stable")
            sums = np.cumsum(gains[order], axis=0)
            for index in np.flatnonzero(np.diff(values[order])):
                value = sums[index].max() + (everything - sums[index]).max()
                low, high = int(values[order[index]]), int(values[order[index + 1]])
                limit = 0 if feature.is_condition else limit_between(low, high)
                even = abs(2 * (int(index) + 1) - len(rows))
                found.append(
                    (-round(float(value), 6), KINDS.index(feature.kind) * len(rows) + even, place, limit)
                )
        return [(place, limit) for _, _, place, limit in sorted(found)[:_FINALISTS]]


def limit_between(low: int, high: int) -> int:
    """The roundest limit that separates `low` from `high`: a power of two if one lies between them.

    Otherwise their geometric mean, since sizes are drawn evenly in their logarithm.
    """
    middle = math.sqrt(max(low, 1) * max(high, 1))
    powers = [1 << bit for bit in range(high.bit_length()) if low <= 1 << bit < high]
    if powers:
        return min(powers, key=lambda power: abs(math.log(power / middle)))
    return min(max(int(middle), low), high - 1)
