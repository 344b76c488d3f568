"""Builds a portfolio from validated candidates: its members, the tree that picks one, and each candidate's gain."""

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
from evaluator.counting import counted


@dataclass(frozen=True)
class Gain:
    """A candidate's contribution to the portfolio.

    Attributes:
        sha256: the candidate.
        label: its label.
        origin: its origin.
        member: whether the tree uses it.
        ratio: for a member of the cover, the factor by which the geometric mean over the timed shapes falls without it; for others,
            the factor by which it would rise with it. Each shape gets its best member. 1 means no effect.
    """

    sha256: str
    label: str
    origin: str
    member: bool
    ratio: float


@dataclass(frozen=True)
class Portfolio:
    """The chosen members and the tree that picks among them.

    Attributes:
        members: what the tree uses: candidates first, then deployable baselines, each in descending order of the calls they get.
        tree: picks the member for a call; its leaves hold indices into `members`.
        decision: "faster" if the portfolio confidently beats the best baseline on validation; else "same" if `winner` is a
            compiler mode or not confidently slower than the best baseline; else "slower".
        reason: one sentence.
        gains: one entry for each validated candidate.
        efficiency: speed of the tree's picks relative to the best candidate at each timed shape, geometric mean.
        shapes: number of timed shapes.
        goal: the group of shapes where the tree's picks gain least, as a target for further search; None if none is clearly worse.
        baseline: the fastest deployable baseline, if it is faster than the plain reference and not a member. Code that times
            members in place must time it as well.
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
        """The contents of the file: the members, then the baseline."""
        return (*self.members, self.baseline) if self.baseline is not None else self.members

    @property
    def winner(self) -> Entry:
        """The candidate that gets the most calls; a baseline if the tree uses no candidate."""
        return self.members[0]

    def told(self) -> dict[str, Any]:
        """The tree in words and each candidate's gain, as a JSON value."""

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
        domain: what the dispatcher can read from a call; None for no features.
        dims: dimensions that the dispatcher has as local variables.
        processors: number of multiprocessors of the GPU; 0 for a CPU.
        most: maximum number of members, including the reference.
        batch_invariant: use one member for all sizes, which keeps a row's result independent of the number of rows; splits may
            test only the dtype.

    Returns:
        None if nothing is worth running instead of the reference.
    """
    if not entries:
        return None
    table = tabulate(entries)
    standing_in = _best_deployable(table)
    always = () if standing_in is None or most <= 2 else (standing_in,)
    chosen = cover(table, most, always)
    members = list(chosen.members) or [int(np.argmax(table.weights @ table.expected))]
    # A candidate that is no faster than the members is useful only if it needs less energy.
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
    """The deployable baseline that is fastest over all shapes, if it beats the plain reference by more than 1 %."""
    means = table.weights @ table.expected
    reference = float(table.weights @ table.reference)
    columns = [column for column in range(len(table.entries)) if table.deployable(column)]
    best = max(columns, key=lambda column: (means[column], -table.entries[column].order), default=None)
    return best if best is not None and means[best] - reference > math.log(1.01) else None


def _by_weight(table: Table, picked: Sequence[int | None]) -> list[int]:
    """The columns that the tree uses: candidates before baselines, each by descending weight of their shapes."""
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
    """Log speedup of the picked column at each shape."""
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
            f"({portfolio.efficiency:.1%} of the best candidate at each of {counted(portfolio.shapes, 'shape')})"
        )
    return text
