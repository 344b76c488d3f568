"""Ranks the candidates of a job for its leaderboards, by the same figures as the choice of the winner.

The choice uses every timed validation shape, including further rounds. The summary of the first validation verdict covers only
the first few shapes, so a leaderboard sorted by it could rank another candidate above the winner.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from agent.portfolio.entries import TIE, Entry
from agent.portfolio.table import tabulate

#: Prefix of the steps that store the result of `ranking`, one for each file that was tried; the last one counts.
RANKING_STEPS = "ranking/"


def ranking(
    entries: Sequence[Entry], members: Sequence[str], refused: Collection[str] = ()
) -> list[dict[str, Any]]:
    """One row for each validated candidate: the winner first, then by descending geometric mean.

    The order uses the mean over all timed shapes with the weights of the choice; a shape where a candidate was not timed counts at
    most as the reference (see `Table.filled`). The figures in a row cover only the shapes where it was timed.

    Args:
        entries: validated candidates of one platform.
        members: sha256 of each member of the delivered file, the winner first.
        refused: sha256 of candidates whose delivered file was not accepted.

    Returns:
        JSON values: `sha256`, `place`, `geomean_speedup` with `ci95`, `worst_speedup`, `shapes` out of `of_shapes`, and `why`: the
        reason for delivering a winner without the best mean, else empty.
    """
    table = tabulate(entries)
    means = table.weights @ table.filled
    by_mean = sorted(range(len(entries)), key=lambda column: (-means[column], entries[column].order))
    order = sorted(by_mean, key=lambda column: entries[column].candidate.sha256 != members[0])
    rows = []
    for place, column in enumerate(order, start=1):
        timed = ~np.isnan(table.gains[:, column])
        gains, weights = table.gains[timed, column], table.weights[timed] / table.weights[timed].sum()
        mean = float(weights @ gains)
        error = 1.96 * math.sqrt(float(weights**2 @ table.errors[timed, column] ** 2))
        rows.append(
            {
                "sha256": entries[column].candidate.sha256,
                "place": place,
                "geomean_speedup": math.exp(mean),
                "ci95": [math.exp(mean - error), math.exp(mean + error)],
                "worst_speedup": math.exp(float(gains.min())),
                "shapes": int(timed.sum()),
                "of_shapes": len(table.shapes),
                "why": "",
            }
        )
    winner, best = order[0], by_mean[0]
    if winner != best:
        ties = bool(means[winner] >= means[best] + math.log(1 - TIE))
        rows[0]["why"] = _why(entries[winner], entries[best], ties, members, refused)
    return rows


def _why(winner: Entry, best: Entry, ties: bool, members: Sequence[str], refused: Collection[str]) -> str:
    label = best.candidate.label
    if best.candidate.sha256 in refused:
        return f"delivered because {label} was not accepted as one file"
    if best.candidate.sha256 in members:
        return f"delivered for most of the shapes; {label} runs at others"
    if not ties:
        return f"delivered because {label} is not confidently faster than the best baseline, or slower at some shape"
    joules = winner.relative_joules, best.relative_joules
    if joules[0] is not None and joules[1] is not None and joules[0] < joules[1]:
        what = "needs less energy"
    else:
        what = "is the shorter file" if winner.lines < best.lines else "came first"
    return f"delivered because it is as fast as {label} within {TIE:.0%} and {what}"


def last_ranking(steps: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The rows of the last choice by sha256, from the steps under `RANKING_STEPS`; empty if there are none."""
    rows = steps[max(steps)] if steps else []
    return {row["sha256"]: row for row in rows} if isinstance(rows, list) else {}
