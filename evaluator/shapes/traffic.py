"""Shapes at which a user's program really calls a module, each with a weight: from a task's `TRAFFIC` or a
request.

Weights are call counts, or anything proportional to them. They come from an untrusted file or over the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.errors import RoleFailure
from evaluator.shapes.space import Dims, Space, check_shape

MOST_ROWS = 64
#: Drawn shapes beside those of the traffic, so that no candidate wins that only works at these.
_DRAWN_BESIDE = 2


@dataclass(frozen=True)
class Traffic:
    """A table of shapes with weights, heaviest first; empty if none was given.

    Attributes:
        rows: shape with every dimension of the task, and its weight (above 0); no shape twice.
    """

    rows: tuple[tuple[Dims, float], ...] = ()

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return math.fsum(weight for _, weight in self.rows)

    def weight(self, dims: Dims) -> float | None:
        """The weight of a shape, None if it is not in the table."""
        return next((weight for row, weight in self.rows if row == dims), None)

    def share(self, shapes: Sequence[Dims]) -> float:
        """The share of the total weight of these shapes, 0 to 1."""
        return math.fsum(weight for row, weight in self.rows if row in shapes) / self.total

    def before(self, drawn: list[Dims], count: int, fits: Callable[[list[Dims]], list[bool]]) -> list[Dims]:
        """The heaviest shapes that fit, at most `count`, and after them drawn ones up to `count`, at least two."""
        if not self.rows:
            return drawn
        given = [dims for dims, _ in self.rows]
        kept = [dims for dims, fitting in zip(given, fits(given), strict=True) if fitting][:count]
        others = [dims for dims in drawn if dims not in given]
        return kept + others[: max(count - len(kept), _DRAWN_BESIDE)]


def parse_traffic(value: Any, space: Space) -> Traffic:
    """Validates a table: a list of pairs (shape, weight), or of objects with the keys `dims` and `weight`.

    Raises:
        RoleFailure: with the word ``task_rejected`` and a sentence for the user.
    """
    if value is None:
        return Traffic()
    if not isinstance(value, list) or len(value) > MOST_ROWS:
        raise RoleFailure("task_rejected", f"TRAFFIC must be a list of at most {MOST_ROWS} (shape, weight)")
    rows: list[tuple[Dims, float]] = []
    for row in value:
        if isinstance(row, dict) and set(row) == {"dims", "weight"}:
            row = [row["dims"], row["weight"]]
        if not isinstance(row, list) or len(row) != 2:
            raise RoleFailure("task_rejected", "each row of TRAFFIC must be a shape and a weight")
        dims, weight = row
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < 1e18:
            raise RoleFailure(
                "task_rejected", f"TRAFFIC: a weight must be a positive number, not {weight!r:.40}"
            )
        shape = check_shape(space, dims)
        if any(shape == other for other, _ in rows):
            raise RoleFailure("task_rejected", f"TRAFFIC names the shape {shape!r:.200} twice")
        rows.append((shape, float(weight)))
    return Traffic(tuple(sorted(rows, key=lambda row: -row[1])))
