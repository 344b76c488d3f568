"""Ratios and their intervals: median of per-quad log ratios, bootstrap over quads, geometric mean over shapes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

_RESAMPLES = 2000


def _generator() -> np.random.Generator:
    return np.random.default_rng(secrets.randbits(64))


def median_interval(log_ratios: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Median of log ratios with its bootstrap interval, as ratios (not logs).

    Args:
        log_ratios: one per quad.
        level: coverage of the interval.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    draws = _generator().integers(0, values.size, (_RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return math.exp(float(np.median(values))), math.exp(float(low)), math.exp(float(high))


def decide(low: float, high: float) -> str:
    """Faster, slower, same or undecided from the interval of a speedup."""
    if low > 1.01:
        return "faster"
    if high < 0.99:
        return "slower"
    if low >= 0.98 and high <= 1.02:
        return "same"
    return "undecided"


def summarize(per_shape: Sequence[Sequence[float]], decisions: Sequence[str]) -> dict[str, Any]:
    """Summary over shapes; two-level bootstrap (shapes, then quads) for the geometric mean's interval.

    Args:
        per_shape: log ratios of each timed shape.
        decisions: decision of each timed shape.
    """
    if not per_shape:
        keys = (
            "geomean_speedup",
            "geomean_ci95",
            "p5_speedup",
            "worst_speedup",
            "share_slower",
            "share_faster",
        )
        return dict.fromkeys(keys) | {"shapes": 0}
    medians = np.array([np.median(values) for values in per_shape])
    generator = _generator()
    arrays = [np.asarray(values, dtype=np.float64) for values in per_shape]
    # A shape drawn k times in one resample gets k draws of its quads of its own: as many columns as there are shapes.
    chosen = generator.integers(0, len(arrays), (_RESAMPLES, len(arrays)))
    picked = np.empty(chosen.shape)
    for index, values in enumerate(arrays):
        mine = chosen == index
        draws = generator.integers(0, values.size, (int(mine.sum()), values.size))
        picked[mine] = np.median(values[draws], axis=1)
    low, high = np.exp(np.quantile(picked.mean(axis=1), [0.025, 0.975]))
    return {
        "geomean_speedup": float(np.exp(medians.mean())),
        "geomean_ci95": [float(low), float(high)],
        "p5_speedup": float(np.exp(np.quantile(medians, 0.05))),
        "worst_speedup": float(np.exp(medians.min())),
        "share_slower": sum(decision == "slower" for decision in decisions) / len(decisions),
        "share_faster": sum(decision == "faster" for decision in decisions) / len(decisions),
        "shapes": len(arrays),
    }
