"""Ratios and their intervals: within a pair of processes, over several pairs, and the weighted geometric mean over
shapes.

One pair of processes is off by 1 to 2 % throughout its life (addresses, pages, hash order), which its quads cannot
show. So with several pairs, the interval is over pairs: repeat at the highest level that varies (T. Kalibera and
R. Jones, "Rigorous benchmarking in reasonable time", 2013).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_RESAMPLES = 2000
#: Student's t at 97.5 % by degrees of freedom, from 1.
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_T975_MANY = 2.086
#: For a normal distribution: standard deviation over the median absolute deviation, and variance of a median over
#: that of a mean.
_SD_OF_MAD, _MEDIAN_VARIANCE = 1.4826, math.pi / 2


def _generator() -> np.random.Generator:
    return np.random.default_rng(secrets.randbits(64))


def median_interval(log_ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median of log ratios, one per quad, with its 95 % bootstrap interval, as ratios (not logs)."""
    values = np.asarray(log_ratios, dtype=np.float64)
    draws = _generator().integers(0, values.size, (_RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return math.exp(float(np.median(values))), math.exp(float(low)), math.exp(float(high))


@dataclass(frozen=True)
class PairEstimate:
    """Log of a ratio with its standard error, and the half-width of the 95 % interval in standard errors.

    Attributes:
        log_ratio: mean over pairs of each pair's median.
        standard_error: of that mean.
        t975: the matching quantile of Student's t.
        degrees: degrees of freedom of that t.
    """

    log_ratio: float
    standard_error: float
    t975: float
    degrees: int

    @property
    def interval(self) -> tuple[float, float, float]:
        """Ratio, low and high end."""
        half = self.t975 * self.standard_error
        return math.exp(self.log_ratio), math.exp(self.log_ratio - half), math.exp(self.log_ratio + half)


def pair_estimate(pairs: Sequence[Sequence[float]], *, same_baseline: bool = False) -> PairEstimate:
    """The ratio over several pairs of processes, each with its own lifelong bias.

    Student's t over the medians of the pairs. If those agree better than the noise within them allows, which
    happens by luck with three pairs, the noise within decides.

    Args:
        pairs: log ratios of the quads of each pair; at least two pairs, each of at least two quads.
        same_baseline: the baseline ran in one process in all of them. Its own bias is then in every pair, and is
            assumed to be as large as the difference between the other side's processes.
    """
    medians = np.array([np.median(quads) for quads in pairs])
    count = len(pairs)
    between = float(np.std(medians, ddof=1)) * math.sqrt(1 / count + same_baseline)
    # Distances from a median of few values are too small on average, because it is one of them.
    distances = np.concatenate(
        [
            np.abs(np.asarray(quads) - median) * math.sqrt(len(quads) / (len(quads) - 1))
            for quads, median in zip(pairs, medians, strict=True)
        ]
    )
    quad_sd = _SD_OF_MAD * float(np.median(distances))
    within = quad_sd * math.sqrt(sum(_MEDIAN_VARIANCE / len(quads) for quads in pairs)) / count
    of_pairs = (between, t975(count - 1), count - 1)
    of_quads = (within, t975(distances.size - count), distances.size - count)
    error, quantile, degrees = max(of_pairs, of_quads, key=lambda entry: entry[0] * entry[1])
    return PairEstimate(float(medians.mean()), error, quantile, degrees)


def t975(degrees: int) -> float:
    """Student's t at 97.5 %; above 20 degrees of freedom that of 20, which is slightly larger."""
    return _T975[degrees - 1] if degrees <= len(_T975) else _T975_MANY


def time_speedup(baseline_us: Sequence[float], speedups: Sequence[float], weights: Sequence[float]) -> float:
    """The baseline's time for all calls over the candidate's, with each shape called ``weights`` times.

    Args:
        baseline_us: the best baseline's time at each shape.
        speedups: of the candidate there.
        weights: how often each shape is called; at least one is above 0.
    """
    spent = np.asarray(weights, dtype=np.float64) * np.asarray(baseline_us)
    return float(spent.sum() / (spent / np.asarray(speedups)).sum())


def decide(low: float, high: float) -> str:
    """Faster, slower, same or undecided, from the interval of a speedup."""
    if low > 1.01:
        return "faster"
    if high < 0.99:
        return "slower"
    if low >= 0.98 and high <= 1.02:
        return "same"
    return "undecided"


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(
        (
            "geomean_speedup",
            "geomean_ci95",
            "p5_speedup",
            "worst_speedup",
            "share_slower",
            "share_faster",
        )
    ),
    "shapes": 0,
}


def summarize(
    per_shape: Sequence[Sequence[float]],
    decisions: Sequence[str],
    estimates: Sequence[PairEstimate | None] = (),
    *,
    shares: Sequence[float] | None = None,
    drawn: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Summary over shapes.

    The interval of the geometric mean has two levels: each shape's own noise (pairs, or otherwise quads), and, for
    drawn shapes, which represent others, the choice of shapes. A shape that was not drawn (the task's own, a
    user's) represents itself and is in every resample.

    Args:
        per_shape: log ratios of each timed shape.
        decisions: decision of each timed shape.
        estimates: for each timed shape the estimate over several pairs; None if there was one pair.
        shares: relative weight of each in the geometric mean; equal if left out. Drawn ones have equal weights.
        drawn: which ones represent others; all if left out.
    """
    count = len(per_shape)
    if not count:
        return dict(_NOTHING)
    weights = np.ones(count) if shares is None else np.asarray(shares, dtype=np.float64)
    weights = weights / weights.sum()
    stands = np.ones(count, dtype=bool) if drawn is None else np.asarray(drawn, dtype=bool)
    middles, noisy = _resampled(per_shape, estimates or [None] * count)
    means = noisy @ weights
    if stands.sum() > 1:
        # What the choice of shapes adds. A resample of n has (n - 1) / n of the variance of n shapes.
        places = np.flatnonzero(stands)
        picked = middles[_generator().choice(places, (_RESAMPLES, places.size))].mean(axis=1)
        spread = math.sqrt(places.size / (places.size - 1)) * weights[stands].sum()
        means = means + spread * (picked - middles[stands].mean())
    low, high = np.exp(np.quantile(means, [0.025, 0.975]))
    return {
        "geomean_speedup": float(np.exp(middles @ weights)),
        "geomean_ci95": (float(low), float(high)),
        "p5_speedup": float(np.exp(np.quantile(middles, 0.05))),
        "worst_speedup": float(np.exp(middles.min())),
        "share_slower": sum(decision == "slower" for decision in decisions) / count,
        "share_faster": sum(decision == "faster" for decision in decisions) / count,
        "shapes": count,
    }


def _resampled(
    per_shape: Sequence[Sequence[float]], estimates: Sequence[PairEstimate | None]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The log speedup at each shape, and :data:`_RESAMPLES` rows of it resampled with its noise."""
    generator = _generator()
    middles = np.zeros(len(per_shape))
    noisy = np.zeros((_RESAMPLES, len(per_shape)))
    for index, (ratios, estimate) in enumerate(zip(per_shape, estimates, strict=True)):
        if estimate is None:
            values = np.asarray(ratios, dtype=np.float64)
            middles[index] = np.median(values)
            noisy[:, index] = np.median(
                values[generator.integers(0, values.size, (_RESAMPLES, values.size))], axis=1
            )
        else:
            # A resample of three pairs would be too narrow. Their interval is Student's t, so these draws are too.
            errors = generator.standard_t(estimate.degrees, _RESAMPLES)
            middles[index] = estimate.log_ratio
            noisy[:, index] = estimate.log_ratio + estimate.standard_error * errors
    return middles, noisy
