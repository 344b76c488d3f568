"""Accepted candidates with their validation measurements, and their ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.candidates import Candidate
from agent.dispatch.domain import dims_key
from agent.judging import Further
from evaluator.fingerprint import platform
from evaluator.verdict import ShapeResult, Verdict

#: Speeds within this share count as equal for a user; the shorter file wins, since it is easier to trust.
TIE = 0.02


@dataclass(frozen=True)
class Entry:
    """An accepted candidate and its validation measurements.

    Attributes:
        candidate: the candidate.
        order: its place in the order of arrival.
        verdict: its validation verdict; `shapes` includes the rows of further rounds.
        asked: shapes requested in further rounds, by `dims_key`, timed or not.
        relative_joules: joules per call over the best baseline's, geometric mean over the measured shapes; None if not
            measured.
        baseline: for an entry that was not judged itself (`agent.portfolio.baselines`), the referee's name of the baseline
            that supplies the times; empty for a candidate.
    """

    candidate: Candidate
    order: int
    verdict: Verdict
    asked: frozenset[str] = frozenset()
    relative_joules: float | None = None
    baseline: str = ""

    @property
    def geomean(self) -> float:
        """Geometric mean speedup over the best baseline; weighted over the user's own shapes if known."""
        traffic, summary = self.verdict.summary.traffic, self.verdict.summary
        return float(traffic["geomean_speedup"] if traffic else summary.geomean_speedup or 0.0)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `geomean`; (0, inf) if the verdict has none."""
        traffic, summary = self.verdict.summary.traffic, self.verdict.summary
        ci95 = traffic.get("geomean_ci95") if traffic else summary.geomean_ci95
        return (float(ci95[0]), float(ci95[1])) if ci95 else (0.0, math.inf)

    @property
    def lines(self) -> int:
        """Lines of source, the tie-breaker."""
        return self.candidate.source.count("\n") + 1

    def speedups(self) -> dict[str, float]:
        """Speedup per timed shape, keyed by `dims_key`."""
        return {dims_key(row.dims): row.speedup or 0.0 for row in timed_rows(self.verdict)}

    def weights(self) -> dict[str, float]:
        """Weight of each timed shape: equal without traffic; with traffic, other shapes get the smallest weight."""
        rows = timed_rows(self.verdict)
        least = min((row.weight for row in rows if row.weight), default=1.0)
        return {dims_key(row.dims): row.weight or least for row in rows}


def timed_rows(verdict: Verdict) -> list[ShapeResult]:
    """The rows of a verdict that have a speedup."""
    return [row for row in verdict.shapes if row.timed and row.speedup]


def rank(entries: Sequence[Entry]) -> list[Entry]:
    """Entries from best to worst; among those within 2 % of the best, fewer lines win, then the older one.

    Ties do not use the best entry's interval: on a noisy machine, a short and slow candidate would win.
    """
    left = sorted(entries, key=lambda entry: (-entry.geomean, entry.order))
    ranked: list[Entry] = []
    while left:
        floor = left[0].geomean * (1 - TIE)
        tied = [entry for entry in left if entry.geomean >= floor]
        best = min(tied, key=lambda entry: (entry.lines, entry.order))
        ranked.append(best)
        left.remove(best)
    return ranked


def choose_winner(entries: Sequence[Entry]) -> tuple[Entry, str, str] | None:
    """The winner, the decision and a sentence; None without entries.

    Only candidates that are confidently faster than the best baseline win by speed. If there are none, the best compiler
    candidate wins, so the result is never worse than the compiler.
    """
    faster = rank([entry for entry in entries if entry.interval[0] > 1.0])
    compiled = [entry for entry in entries if entry.candidate.origin == "compiler"]
    if faster:
        best = faster[0]
        return best, "faster", f"{speed_text(best)} faster than the best baseline on the validation shapes"
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
            f"nothing was confidently faster than the best baseline; the best was {speed_text(best)}",
        )
    return None


def tied(entries: Sequence[Entry], most: int) -> list[Entry]:
    """The fastest entry and those that tie with it, all confidently faster than the best baseline; empty without a tie."""
    faster = sorted(
        (entry for entry in entries if entry.interval[0] > 1.0),
        key=lambda entry: (-entry.geomean, entry.order),
    )
    near = [entry for entry in faster if entry.geomean >= faster[0].geomean * (1 - TIE)]
    return near[:most] if len(near) > 1 else []


def with_further(entry: Entry, further: Sequence[Further]) -> list[Entry]:
    """The entry with the rows of further rounds, as a list; empty if one of them rejected it."""
    if any(one.verdict.verdict not in ("accepted", "not_judged") for one in further):
        return []
    rows = [row for one in further for row in timed_rows(one.verdict)]
    asked = frozenset(dims_key(dims) for one in further for dims in one.asked)
    verdict = replace(entry.verdict, shapes=(*entry.verdict.shapes, *rows))
    return [replace(entry, verdict=verdict, asked=asked)]


def wins_everywhere(validations: Sequence[Verdict]) -> bool:
    """Whether every validation shape has a candidate that is confidently faster than the best baseline."""
    best: dict[str, float] = {}
    for verdict in validations:
        for row in timed_rows(verdict):
            key = dims_key(row.dims)
            best[key] = max(best.get(key, 0.0), row.ci95[0] if row.ci95 else 0.0)
    return bool(best) and min(best.values()) > 1.0


def ranked_speedup(row: ShapeResult, baseline: str) -> float | None:
    """A baseline's speed relative to the best one at a row's shape, from the ranking round; None if not timed."""
    own_us = (row.baselines.get(baseline) or {}).get("median_us")
    best_us = (row.baselines.get(row.best_baseline or "") or {}).get("median_us") or row.baseline_us
    return float(best_us) / float(own_us) if own_us and best_us else None


def eager_speedups(verdict: Verdict) -> dict[str, float]:
    """Speed of the plain reference at the process's thread count relative to the best baseline, by `dims_key`."""
    threads = verdict.environment.get("threads")
    found = {}
    for row in timed_rows(verdict):
        speedup = ranked_speedup(row, f"eager/{threads}t") or ranked_speedup(row, "eager")
        if speedup:
            found[dims_key(row.dims)] = speedup
    return found


def speed_text(entry: Entry) -> str:
    """Geometric mean with its interval."""
    low, high = entry.interval
    return f"{entry.geomean:.2f}x [{low:.2f}, {high:.2f}]"


def of_one_platform(entries: Sequence[Entry]) -> list[Entry]:
    """The entries measured on the most common platform; ties go to the latest one, where the job runs now."""
    keys = [platform(entry.verdict.environment) for entry in entries]
    if not keys:
        return []
    last = {key: place for place, key in enumerate(keys)}
    chosen = max(last, key=lambda key: (keys.count(key), last[key]))
    return [entry for entry, key in zip(entries, keys, strict=True) if key == chosen]
