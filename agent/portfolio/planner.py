"""Which candidates to time at which further validation shapes: successive halving over candidates x shapes.

Four shapes tell a winner; they do not tell where another candidate is better. Every round adds twice as many shapes as the one
before and keeps half of the candidates: those that the present cover needs, and then those that bring most beside it.
Nothing more is asked for where one candidate wins everywhere: there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.dispatch.domain import dims_key
from agent.portfolio.cover import cover
from agent.portfolio.entries import Entry, wins_everywhere
from agent.portfolio.table import Table, tabulate

#: Shapes of the first round; each further round has twice as many.
_FIRST = 4


@dataclass(frozen=True)
class Ask:
    """Timings that are worth having.

    Attributes:
        entry: the candidate.
        shapes: where to time it.
    """

    entry: Entry
    shapes: tuple[Mapping[str, Any], ...]


def next_timings(entries: Sequence[Entry], further: Sequence[Mapping[str, Any]], most: int) -> list[Ask]:
    """The timings of the next round, the most promising candidate first.

    Args:
        entries: validated candidates, with what further rounds measured so far; `Entry.asked` says where they were timed already.
        further: shapes to choose among, in the order in which they are used.
        most: timings (one candidate at one shape) of all rounds together.

    Returns:
        Nothing when the rounds are over, the timings are spent, or there is nothing to choose.
    """
    left = most - sum(len(entry.asked) for entry in entries)
    if left <= 0 or not further or not entries:
        return []
    table = tabulate(entries)
    if len(cover(table).members) <= 1 and wins_everywhere([entry.verdict for entry in entries]):
        return []
    ranked, needed = _ranked(table)
    end, number = _FIRST, 0
    while True:
        keep = max(-(-len(entries) // 2**number), needed)
        open_asks = [
            (column, missing)
            for column in ranked[:keep]
            if (missing := [dims for dims in further[:end] if dims_key(dims) not in entries[column].asked])
        ]
        # What is left is shared out evenly: a contender that is not timed where another is cannot be compared there.
        each = left // max(len(open_asks), 1)
        asks = [Ask(entries[column], tuple(missing[:each])) for column, missing in open_asks if each]
        if open_asks or end >= len(further):
            return asks
        number += 1
        end += _FIRST << number


def _ranked(table: Table) -> tuple[list[int], int]:
    """Columns by what they bring beside those before them, and how many of them the cover needs."""
    found = cover(table)
    means = table.weights @ table.filled
    order = sorted(
        (column for column in range(len(table.entries)) if column not in found.members),
        key=lambda column: (-found.marginal[column], -float(means[column]), table.entries[column].order),
    )
    return [*found.members, *order], max(len(found.members), 1)
