"""Plans which candidates to time at which further validation shapes: successive halving over candidates x shapes.

Four shapes identify a winner but not the sizes where another candidate is better. Each round adds twice as many shapes as the
previous one and keeps half of the candidates: first those in the current cover, then those that would add most to it.
If one candidate wins everywhere, there is nothing to choose and no further timing is requested.
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
    """A request to time a candidate at further shapes.

    Attributes:
        entry: the candidate.
        shapes: shapes to time it at.
    """

    entry: Entry
    shapes: tuple[Mapping[str, Any], ...]


def next_timings(entries: Sequence[Entry], further: Sequence[Mapping[str, Any]], most: int) -> list[Ask]:
    """The timings of the next round, the most promising candidate first.

    Args:
        entries: validated candidates with the results of further rounds so far; `Entry.asked` holds the shapes requested already.
        further: shapes to choose from, in the order of use.
        most: maximum timings (one candidate at one shape) over all rounds.

    Returns:
        An empty list if the rounds are over, the budget is spent, or there is nothing to choose.
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
        # Share the remaining budget evenly: candidates can be compared only at shapes where both are timed.
        each = left // max(len(open_asks), 1)
        asks = [Ask(entries[column], tuple(missing[:each])) for column, missing in open_asks if each]
        if open_asks or end >= len(further):
            return asks
        number += 1
        end += _FIRST << number


def _ranked(table: Table) -> tuple[list[int], int]:
    """Columns, those of the cover first and the rest by marginal gain, and the size of the cover (at least 1)."""
    found = cover(table)
    means = table.weights @ table.expected
    order = sorted(
        (column for column in range(len(table.entries)) if column not in found.members),
        key=lambda column: (-found.marginal[column], -float(means[column]), table.entries[column].order),
    )
    return [*found.members, *order], max(len(found.members), 1)
