"""From outcomes of all arms and seeds to the figures and the claims of docs/rl-claims.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.dialect.arms import Outcome
from rl.intervals import Interval, mean_of, ratio_of_means

#: What the supervised policy's mean is to be multiplied by, and which share of the optimum is to be reached.
P1_RATIO, P2_SHARE = 1.5, 0.9
_LEAST = 1e-2


@dataclass(frozen=True)
class Claim:
    """A claim's name and measure in words, its value with the interval, and whether it holds by the rule written down.

    Without a value where it would be a ratio to nothing: the other arm had no success at all. Then it does not hold.
    """

    name: str
    measure: str
    value: float | None
    low: float | None
    high: float | None
    holds: bool


def grid(
    outcomes: Sequence[Outcome], arm: str, of_task: Callable[[Sequence[float]], float]
) -> NDArray[np.float64]:
    """[seeds, tasks] of a figure per task, both in a fixed order."""
    chosen = sorted((outcome for outcome in outcomes if outcome.arm == arm), key=lambda outcome: outcome.seed)
    return np.array([[of_task(scores) for _, scores in sorted(outcome.scores.items())] for outcome in chosen])


def _different(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same outcomes over different candidates instead of samples."""
    return [replace(outcome, scores=outcome.different) for outcome in outcomes if outcome.different]


def figures(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """By arm: mean of samples, best per task (as it is, and over the optimum), and what keeps an arithmetic mean honest."""
    best_possible = grid(outcomes, "optimum", max)
    found = {}
    for arm in dict.fromkeys(outcome.arm for outcome in outcomes):
        of_arm = [outcome for outcome in outcomes if outcome.arm == arm]
        apart = _different(of_arm)
        best = grid(outcomes, arm, max)
        every = [score for outcome in of_arm for scores in outcome.scores.values() for score in scores]
        found[arm] = {
            "mean": asdict(mean_of(grid(outcomes, arm, statistics.fmean))),
            "best": asdict(mean_of(best)),
            "of_optimum": asdict(mean_of(best / best_possible)),
            "best_of_different": asdict(mean_of(grid(apart, arm, max))) if apart else None,
            "different_found": statistics.fmean(
                len(scores) for one in apart for scores in one.scores.values()
            )
            if apart
            else None,
            "geomean_best": math.exp(float(np.log(np.maximum(best, _LEAST)).mean())),
            "median": statistics.median(every),
            "above_1_05": sum(score > 1.05 for score in every) / len(every),
            "accepted": sum(score > 0 for score in every) / len(every),
            "outside": statistics.fmean(outcome.outside for outcome in of_arm),
            "judged": statistics.fmean(outcome.judged for outcome in of_arm),
        }
    return found


def claims(outcomes: Sequence[Outcome]) -> list[Claim]:
    """The claims in their order; a ratio holds if its whole interval lies above 1 (P1: and the ratio is at least 1.5)."""

    def means(arm: str) -> NDArray[np.float64]:
        return grid(outcomes, arm, statistics.fmean)

    def bests(arm: str) -> NDArray[np.float64]:
        return grid(outcomes, arm, max)

    def claim(name: str, measure: str, interval: Interval | None, least: float, surely_above: float) -> Claim:
        if interval is None:
            return Claim(name, measure, None, None, None, False)
        holds = interval.value >= least and interval.low > surely_above
        return Claim(name, measure, interval.value, interval.low, interval.high, holds)

    def ratio(after: NDArray[np.float64], before: NDArray[np.float64]) -> Interval | None:
        return ratio_of_means(after, before) if before.mean() > 0 else None

    first = ratio(means("contrastive"), means("sft"))
    share = mean_of(bests("contrastive") / bests("optimum"))
    found = [
        claim("P1", "mean, contrastive over sft", first, P1_RATIO, 1.0),
        claim("P2", "best over the optimum, contrastive", share, P2_SHARE, -math.inf),
    ]
    ratios = [
        ("P3", "best, contrastive over sft_longer", bests, "sft_longer"),
        ("S1", "mean, contrastive over plain", means, "plain"),
        ("S2", "mean, contrastive over shuffled_scores", means, "shuffled_scores"),
        ("S3", "mean, contrastive over random_exemplars", means, "random_exemplars"),
        ("S4", "mean, contrastive over frozen", means, "frozen"),
        ("S5", "best, contrastive over random_valid", bests, "random_valid"),
        ("S6", "best, contrastive over sft, eight samples each", bests, "sft"),
    ]
    for name, measure, of, other in ratios:
        found.append(claim(name, measure, ratio(of("contrastive"), of(other)), 1.0, 1.0))
    apart = _different(outcomes)
    if apart:  # of all arms, or of none
        best = {arm: grid(apart, arm, max) for arm in ("contrastive", "sft", "random_valid", "optimum")}
        share = mean_of(best["contrastive"] / best["optimum"])
        found.append(
            claim("P2d", "best of different ones over the optimum, contrastive", share, P2_SHARE, -math.inf)
        )
        for name, other in (("S5d", "random_valid"), ("S6d", "sft")):
            measure = f"best of different ones, contrastive over {other}, eight each"
            found.append(claim(name, measure, ratio(best["contrastive"], best[other]), 1.0, 1.0))
    return found
