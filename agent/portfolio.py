"""Chooses what optimized.py consists of, from validation verdicts alone.

Thin on purpose: one winner, and a second member on one side of one readable threshold (total input elements) where
that is clearly better on the validation shapes. The reference itself is always a possible member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.bundle.assembly import Leaves
from agent.bundle.domain import dims_key
from agent.candidates import Candidate

# A second member must make its side of the threshold this much faster than the winner does there, or the dispatcher
# is not worth its reader.
_SECOND_MEMBER_GAIN = 1.05
_MINIMUM_SHAPES_PER_SIDE = 2


#: Speeds nearer than this are the same to a user, and a shorter file is easier to trust.
_TIE = 0.02


@dataclass(frozen=True)
class Entry:
    """An accepted candidate and what validation measured.

    Attributes:
        candidate: the candidate.
        order: its place in the order of arrival.
        verdict: its validation verdict.
    """

    candidate: Candidate
    order: int
    verdict: Mapping[str, Any]

    @property
    def geomean(self) -> float:
        """Geometric mean of the speedups over the best baseline; weighted over the user's own shapes where they are known."""
        return float(self._figures["geomean_speedup"])

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `geomean`; as wide as can be when the verdict has none."""
        ci95 = self._figures.get("geomean_ci95")
        return (float(ci95[0]), float(ci95[1])) if ci95 else (0.0, math.inf)

    @property
    def _figures(self) -> Mapping[str, Any]:
        summary: Mapping[str, Any] = self.verdict["summary"]
        return summary.get("traffic") or summary

    @property
    def lines(self) -> int:
        """Lines of source, the tie-breaker."""
        return self.candidate.source.count("\n") + 1

    def speedups(self) -> dict[str, float]:
        """Speedup per timed shape, keyed by `dims_key`."""
        return {dims_key(row["dims"]): float(row["speedup"]) for row in timed_rows(self.verdict)}

    def weights(self) -> dict[str, float]:
        """How much each timed shape counts: all alike without traffic; with it, others as little as the rarest."""
        rows = timed_rows(self.verdict)
        least = min((float(row["weight"]) for row in rows if row.get("weight")), default=1.0)
        return {dims_key(row["dims"]): float(row.get("weight") or least) for row in rows}


@dataclass(frozen=True)
class Portfolio:
    """What was chosen.

    Attributes:
        members: winner first.
        leaves: which member runs where.
        decision: "faster" when the winner beats the best baseline confidently on validation, "same" when nothing
            does and the best compiler mode stands in, "slower" when even that was not to be had.
        reason: one sentence.
    """

    members: tuple[Entry, ...]
    leaves: Leaves
    decision: str
    reason: str

    @property
    def winner(self) -> Entry:
        """The member that runs on most shapes."""
        return self.members[0]


def timed_rows(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of a verdict that carry a speedup."""
    return [row for row in verdict.get("shapes") or [] if row.get("timed") and row.get("speedup")]


def rank(entries: Sequence[Entry]) -> list[Entry]:
    """Entries from best to worst; among those within 2 % of the best fewer lines win, then the older one.

    Not within its interval: on a noisy machine that would hand the job to a short and slow candidate.
    """
    left = sorted(entries, key=lambda entry: (-entry.geomean, entry.order))
    ranked: list[Entry] = []
    while left:
        floor = left[0].geomean * (1 - _TIE)
        tied = [entry for entry in left if entry.geomean >= floor]
        best = min(tied, key=lambda entry: (entry.lines, entry.order))
        ranked.append(best)
        left.remove(best)
    return ranked


def choose_winner(entries: Sequence[Entry]) -> tuple[Entry, str, str] | None:
    """The winner, the decision and a sentence; None when there is no entry.

    Only candidates that are confidently faster than the best baseline win by speed. Without one the best compiler
    candidate stands in, so that the result is never worse than the compiler.
    """
    faster = rank([entry for entry in entries if entry.interval[0] > 1.0])
    compiled = [entry for entry in entries if entry.candidate.origin == "compiler"]
    if faster:
        best = faster[0]
        return best, "faster", f"{_speed(best)} faster than the best baseline on the validation shapes"
    if compiled:
        best = max(compiled, key=lambda entry: (entry.geomean, -entry.order))
        return (
            best,
            "same",
            "nothing was confidently faster than the best baseline; the best compiler mode is kept",
        )
    if entries:
        best = rank(entries)[0]
        decision = "slower" if best.interval[1] < 1.0 else "same"
        return (
            best,
            decision,
            f"nothing was confidently faster than the best baseline; the best was {_speed(best)}",
        )
    return None


def build_portfolio(entries: Sequence[Entry], elements: Mapping[str, int]) -> Portfolio | None:
    """Winner, and a second member where one threshold makes a clear difference.

    Args:
        entries: accepted candidates with validation verdicts.
        elements: total input elements per validation shape, keyed by `dims_key`.
    """
    chosen = choose_winner(entries)
    if chosen is None:
        return None
    winner, decision, reason = chosen
    split = _best_split(winner, entries, elements)
    if split is None:
        return Portfolio((winner,), Leaves(0, 0, None), decision, reason)
    other, limit, other_is_small, gain = split
    index = 1 if other is not None else None
    leaves = Leaves(index, 0, limit) if other_is_small else Leaves(0, index, limit)
    name = other.candidate.label if other is not None else "the reference"
    side = "up to" if other_is_small else "above"
    reason += f"; {name} runs {side} {limit} input elements, {gain:.2f}x faster than the winner there"
    return Portfolio((winner, other) if other is not None else (winner,), leaves, decision, reason)


def _best_split(
    winner: Entry, entries: Sequence[Entry], elements: Mapping[str, int]
) -> tuple[Entry | None, int, bool, float] | None:
    """(other member or None for the reference, limit, whether it runs below, gain) of the best threshold."""
    own, weights = winner.speedups(), winner.weights()
    mean_weight = sum(weights.values()) / max(len(weights), 1)
    known = sorted({elements[key] for key in own if key in elements})
    rivals: list[tuple[Entry | None, dict[str, float]]] = [(None, _eager_speedups(winner.verdict))]
    rivals += [(entry, entry.speedups()) for entry in entries if entry is not winner]
    best: tuple[float, Entry | None, int, bool, float] | None = None
    for limit in known[:-1]:
        for small in (True, False):
            keys = [key for key in own if key in elements and (elements[key] <= limit) == small]
            if len(keys) < _MINIMUM_SHAPES_PER_SIDE or len(own) - len(keys) < _MINIMUM_SHAPES_PER_SIDE:
                continue
            for rival, speedups in rivals:
                if any(key not in speedups for key in keys):
                    continue
                ratios = [speedups[key] / own[key] for key in keys]
                weight = sum(weights[key] for key in keys)
                logs = sum(weights[key] * math.log(ratio) for key, ratio in zip(keys, ratios, strict=True))
                gain = math.exp(logs / weight)
                steady = sum(ratio > 1.0 for ratio in ratios) >= 0.75 * len(ratios)
                total = logs / mean_weight
                if gain >= _SECOND_MEMBER_GAIN and steady and (best is None or total > best[0]):
                    best = (total, rival, limit, small, gain)
    return best[1:] if best else None


def _eager_speedups(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Speedup of the plain reference at the process's own number of threads, where it was timed."""
    threads = (verdict.get("environment") or {}).get("threads")
    found = {}
    for row in timed_rows(verdict):
        eager = (row.get("baselines") or {}).get(f"eager/{threads}t") or (row.get("baselines") or {}).get(
            "eager"
        )
        if eager and eager.get("median_us") and row.get("baseline_us"):
            found[dims_key(row["dims"])] = float(row["baseline_us"]) / float(eager["median_us"])
    return found


def _speed(entry: Entry) -> str:
    low, high = entry.interval
    return f"{entry.geomean:.2f}x [{low:.2f}, {high:.2f}]"
