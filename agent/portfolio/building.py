"""From validated candidates to what optimized.py consists of: members, the tree that picks one, and what each brings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agent.dispatch.domain import Domain
from agent.dispatch.features import features_of, points_of
from agent.dispatch.tree import Node, Split, leaves, member_at, renumbered, sentences
from agent.portfolio.clusters import Cluster, worst_group
from agent.portfolio.cover import MOST_MEMBERS, cover
from agent.portfolio.entries import Entry, speed_text
from agent.portfolio.table import Table, tabulate
from agent.portfolio.tree_fitting import TreeFitter


@dataclass(frozen=True)
class Gain:
    """What a candidate is worth to the portfolio.

    Attributes:
        sha256: the candidate.
        label: its label.
        origin: its origin.
        member: whether the tree uses it.
        ratio: of members, by how much the geometric mean over the timed shapes falls without them; of others, by how much it would
            rise with them, if each shape got its best member. 1 is nothing.
    """

    sha256: str
    label: str
    origin: str
    member: bool
    ratio: float


@dataclass(frozen=True)
class Portfolio:
    """What was chosen.

    Attributes:
        members: those that the tree uses, candidates before ways to run the reference, the one that runs most first.
        tree: which member runs where; its leaves hold indices into `members`.
        decision: "faster" when a leaf beats the best baseline confidently on validation, "same" when nothing does and what comes
            nearest to it stands in, "slower" when even that was not to be had.
        reason: one sentence.
        gains: of every validated candidate.
        efficiency: of what the tree picks against the best of all candidates at each timed shape, geometric mean.
        shapes: timed shapes.
        goal: the group of shapes where what the tree picks gains least, for who goes on; None if none is clearly worse.
        baseline: the best way to run the reference that anybody has, where that is faster than the reference as it is and no member:
            who times members where they run must time it, too.
    """

    members: tuple[Entry, ...]
    tree: Node
    decision: str
    reason: str
    gains: tuple[Gain, ...] = ()
    efficiency: float = 1.0
    shapes: int = 0
    goal: Cluster | None = None
    baseline: Entry | None = None

    @property
    def delivered(self) -> tuple[Entry, ...]:
        """What the file holds: the members, and after them the baseline."""
        return (*self.members, self.baseline) if self.baseline is not None else self.members

    @property
    def winner(self) -> Entry:
        """The candidate that runs on most shapes; a baseline where no candidate runs anywhere."""
        return self.members[0]

    def told(self) -> dict[str, Any]:
        """The tree in words and what each candidate brings, as a JSON value."""

        def name(index: int | None) -> str:
            return "the reference" if index is None else self.members[index].candidate.label

        return {
            "rules": [
                {"where": where, "runs": runs, "why": why} for where, runs, why in sentences(self.tree, name)
            ],
            "gains": [dataclasses.asdict(gain) for gain in self.gains],
            "efficiency": self.efficiency,
            "shapes": self.shapes,
            "goal": None
            if self.goal is None
            else {
                "where": self.goal.words,
                "shapes": len(self.goal.shapes),
                "geomean": self.goal.geomean,
                "rest": self.goal.rest,
            },
        }


def build_portfolio(
    entries: Sequence[Entry],
    domain: Domain | None = None,
    dims: Sequence[str] = (),
    processors: int = 0,
    *,
    most: int = MOST_MEMBERS,
    batch_invariant: bool = False,
) -> Portfolio | None:
    """Choose members by a greedy cover and grow the tree that picks among them.

    Args:
        entries: accepted candidates with validation verdicts.
        domain: what the dispatcher can tell of a call; None for nothing.
        dims: dimensions that the dispatcher has as local variables.
        processors: multiprocessors of the GPU; 0 for a CPU.
        most: members, the reference among them.
        batch_invariant: one member for all sizes, so that a row's result does not depend on how many rows there are; at most the
            dtype decides.

    Returns:
        None where nothing is worth running instead of the reference.
    """
    if not entries:
        return None
    table = tabulate(entries)
    standing_in = _best_deployable(table)
    always = () if standing_in is None or most <= 2 else (standing_in,)
    chosen = cover(table, most, always)
    members = list(chosen.members) or [int(np.argmax(table.weights @ table.filled))]
    # Who is no faster than the members brings them nothing, unless it needs less energy.
    thrifty = [
        column
        for column, entry in enumerate(entries)
        if entry.relative_joules is not None and column not in members
    ]
    members += thrifty[: max(most - 1 - len(members), 0)]
    points = points_of(table.shapes, domain)
    features = features_of(domain, dims, points, processors) if domain is not None else []
    if batch_invariant:
        features = [feature for feature in features if feature.kind == "dtype"]
    tree = TreeFitter(table, members, points, features).grow()
    picked = [member_at(tree, point) for point in points]
    used = _by_weight(table, picked)
    if not used:
        return None
    number = {column: index for index, column in enumerate(used)}
    portfolio = Portfolio(
        members=tuple(entries[column] for column in used),
        tree=renumbered(tree, number),
        decision="same",
        reason="",
        gains=tuple(
            Gain(
                entry.candidate.sha256,
                entry.candidate.label,
                entry.candidate.origin,
                column in used,
                math.exp(chosen.marginal[column]),
            )
            for column, entry in enumerate(entries)
        ),
        efficiency=_efficiency(table, picked),
        shapes=len(points),
        goal=worst_group(
            [(dims, math.exp(log)) for dims, log in zip(table.shapes, _logs(table, picked), strict=True)]
        ),
        baseline=None if not always or standing_in in used else entries[always[0]],
    )
    decision = _decision(portfolio)
    return replace(portfolio, decision=decision, reason=_reason(portfolio, decision))


def _best_deployable(table: Table) -> int | None:
    """The way to run the reference that is fastest over all shapes, if it is faster than the reference as it is."""
    means = table.weights @ table.filled
    reference = float(table.weights @ table.reference)
    columns = [column for column in range(len(table.entries)) if table.deployable(column)]
    best = max(columns, key=lambda column: (means[column], -table.entries[column].order), default=None)
    return best if best is not None and means[best] - reference > math.log(1.01) else None


def _by_weight(table: Table, picked: Sequence[int | None]) -> list[int]:
    """The columns that the tree uses: candidates before baselines, that of most calls first."""
    weights: dict[int, float] = {}
    for column, weight in zip(picked, table.weights, strict=True):
        if column is not None:
            weights[column] = weights.get(column, 0.0) + float(weight)
    return sorted(
        weights,
        key=lambda column: (
            bool(table.entries[column].baseline),
            -weights[column],
            table.entries[column].order,
        ),
    )


def _logs(table: Table, picked: Sequence[int | None]) -> list[float]:
    """Log speedup of what runs at each shape."""
    filled = table.filled
    return [
        float(table.reference[line] if column is None else filled[line, column])
        for line, column in enumerate(picked)
    ]


def _efficiency(table: Table, picked: Sequence[int | None]) -> float:
    best = np.maximum(table.filled.max(axis=1), table.reference)
    return math.exp(float(table.weights @ (np.array(_logs(table, picked)) - best)))


def _decision(portfolio: Portfolio) -> str:
    standing_in = portfolio.winner
    if any(leaf.faster for leaf in leaves(portfolio.tree)) or standing_in.interval[0] > 1.0:
        return "faster"
    return (
        "same" if standing_in.candidate.origin == "compiler" or standing_in.interval[1] >= 1.0 else "slower"
    )


def _reason(portfolio: Portfolio, decision: str) -> str:
    winner = portfolio.winner
    if decision == "faster":
        text = f"{winner.candidate.label}: {speed_text(winner)} of the best baseline's speed on the validation shapes"
    elif winner.candidate.origin == "compiler":
        text = "nothing was confidently faster than the best baseline; the best compiler mode is kept"
    else:
        text = f"nothing was confidently faster than the best baseline; the best was {speed_text(winner)}"
    if isinstance(portfolio.tree, Split):
        also = [entry.candidate.label for entry in portfolio.members[1:]]
        also += ["the reference"] if any(leaf.member is None for leaf in leaves(portfolio.tree)) else []
        text += (
            f"; {', '.join(also)} run{'s' if len(also) == 1 else ''} where the dispatcher says so "
            f"({portfolio.efficiency:.1%} of the best candidate at each of {portfolio.shapes} shapes)"
        )
    return text
