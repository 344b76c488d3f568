"""Confidence intervals over seeds and tasks; they cover both a run's luck and the choice of held-out tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio_of_means(
    after: NDArray[np.float64], before: NDArray[np.float64], resamples: int = RESAMPLES
) -> Interval:
    """Mean of ``after`` over mean of ``before``, both [seeds, tasks] and paired on both axes.

    The percentile interval is from a two-stage bootstrap: seeds are resampled, then tasks, identically for both sides. Resampling
    is seeded, so the interval is deterministic.

    Raises:
        ValueError: the shapes differ, or the mean of ``before`` is not above 0.
    """
    if after.shape != before.shape or after.ndim != 2 or not after.size:
        raise ValueError(f"not the same seeds and tasks: {after.shape} and {before.shape}")
    if before.mean() <= 0:
        raise ValueError("a ratio to a mean of 0")
    generator = np.random.default_rng(0)
    seeds, tasks = after.shape
    ratios = np.empty(resamples)
    for index in range(resamples):
        rows = generator.integers(seeds, size=(seeds, 1))
        columns = generator.integers(tasks, size=(1, tasks))
        below = before[rows, columns].mean()
        ratios[index] = after[rows, columns].mean() / below if below > 0 else np.inf
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(after.mean() / before.mean()), float(low), float(high))


def mean_of(values: NDArray[np.float64], resamples: int = RESAMPLES) -> Interval:
    """The mean of an array [seeds, tasks] with the same two-stage interval."""
    return ratio_of_means(values, np.ones_like(values), resamples)
