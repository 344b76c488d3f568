"""Selects a few candidates that together cover the shapes: a greedy cover by mean log regret that always includes the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.portfolio.entries import TIE, Entry
from agent.portfolio.table import Array, Table, tabulate

#: Maximum members of a portfolio, including the reference.
MOST_MEMBERS = 8
#: A further member must lift the geometric mean over the shapes, or their 5th percentile, by at least this much.
_LIFT_MEAN, _LIFT_P5 = math.log(1.01), math.log(1.02)


@dataclass(frozen=True)
class Cover:
    """Columns of a table.

    Attributes:
        members: in the order of selection; the reference is an implicit member.
        marginal: for each column of the table, as a log ratio: what the geometric mean loses without it if it is a member, or
            would gain with it if not.
    """

    members: tuple[int, ...]
    marginal: tuple[float, ...]


def cover(table: Table, most: int = MOST_MEMBERS, always: Sequence[int] = ()) -> Cover:
    """Add the candidate that lifts the cover most until none lifts the mean by 1 % or the 5th percentile by 2 %.

    Args:
        table: the measurements.
        most: maximum number of members, including the reference.
        always: columns to start with.
    """
    expected = table.expected
    members = list(always)
    while len(members) + 1 < most:
        best = _next(table, expected, members)
        if best is None:
            break
        members.append(best)
    return Cover(tuple(members), _marginal(table, expected, members))


def covering(entries: Sequence[Entry]) -> list[Entry]:
    """The candidates that a portfolio would keep; together they determine the speed a user would get."""
    return [entries[column] for column in cover(tabulate(entries)).members] if entries else []


def _next(table: Table, gains: Array, members: Sequence[int]) -> int | None:
    now = _best(table, gains, members)
    lifts: list[tuple[float, int]] = []
    for column in range(gains.shape[1]):
        if column in members:
            continue
        then = np.maximum(now, gains[:, column])
        lift = _mean(table, then) - _mean(table, now)
        if lift >= _LIFT_MEAN or _p5(table, then) - _p5(table, now) >= _LIFT_P5:
            lifts.append((lift, column))
    if not lifts:
        return None
    # Among near ties prefer the shorter source, then the older candidate, as in `rank`.
    near = [column for lift, column in lifts if lift >= max(lifts)[0] + math.log(1 - TIE)]
    return min(near, key=lambda column: (table.entries[column].lines, table.entries[column].order))


def _marginal(table: Table, gains: Array, members: Sequence[int]) -> tuple[float, ...]:
    now = _mean(table, _best(table, gains, members))
    found = []
    for column in range(gains.shape[1]):
        others = [member for member in members if member != column]
        then = _mean(table, _best(table, gains, [*others, column] if column not in members else others))
        found.append(now - then if column in members else then - now)
    return tuple(max(value, 0.0) for value in found)


def _best(table: Table, gains: Array, members: Sequence[int]) -> Array:
    """Log speedup of the best member or the reference at each shape."""
    columns = [gains[:, member] for member in members]
    best: Array = np.maximum.reduce([table.reference, *columns])
    return best


def _mean(table: Table, values: Array) -> float:
    return float(table.weights @ values)


def _p5(table: Table, values: Array) -> float:
    """The weighted 5th percentile: at most a twentieth of the weight lies below it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(table.weights[order])
    return float(values[order][np.searchsorted(below, 0.05, side="right")])
