"""Ratios and their intervals: within a pair of processes, over several pairs, and the geometric mean over shapes.

One pair of processes is off by 1 to 2 % for as long as it lives (addresses, pages, order of hashes), which its quads cannot
show. So whoever has several pairs takes the interval over pairs: repeat at the highest level that varies (T. Kalibera and
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
#: Of a normal distribution: standard deviation over the median absolute deviation, and variance of a median over that of a mean.
_SD_OF_MAD, _MEDIAN_VARIANCE = 1.4826, math.pi / 2


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


@dataclass(frozen=True)
class PairEstimate:
    """Log of a ratio with its standard error, and how many standard errors half of the 95 % interval takes.

    Attributes:
        log_ratio: mean over pairs of each pair's median.
        standard_error: of that mean.
        t975: the quantile of Student's t that belongs to it.
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
    """The ratio that several pairs of processes say, each as long as it lived with a bias of its own.

    Student's t over the medians of the pairs; where those agree better than the noise within them lets them, which three
    of them do now and then by luck, the noise within decides.

    Args:
        pairs: log ratios of the quads of each pair; at least two pairs, each of at least two quads.
        same_baseline: the baseline ran in one process in all of them. Its own bias is in every pair then, and is taken to be as
            large as what the other side's processes differ by.
    """
    medians = np.array([np.median(quads) for quads in pairs])
    count = len(pairs)
    between = float(np.std(medians, ddof=1)) * math.sqrt(1 / count + same_baseline)
    # Distances from a median of so few are too small on average: it lies among them.
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
    """Student's t at 97.5 %; above 20 degrees of freedom that of 20, which is a little more."""
    return _T975[degrees - 1] if degrees <= len(_T975) else _T975_MANY


def summarize_traffic(
    per_shape: Sequence[Sequence[float]],
    baseline_us: Sequence[float],
    weights: Sequence[float],
    estimates: Sequence[PairEstimate | None],
) -> dict[str, Any]:
    """Summary of shapes that are known to be called so often.

    They are no sample of others: the interval holds for these shapes at these weights, so none is left out of a resample.

    Args:
        per_shape: log ratios of each timed shape.
        baseline_us: what the best baseline takes there.
        weights: how often each is called; 0 leaves it out. At least one is above 0.
        estimates: as in :func:`summarize`.

    Returns:
        ``geomean_speedup`` and ``geomean_ci95``, weighted; ``time_speedup``, the baseline's time for all of these calls over the
        candidate's; ``shapes``.
    """
    generator = _generator()
    shares = np.asarray(weights, dtype=np.float64) / math.fsum(weights)
    middles = np.zeros(len(per_shape))
    drawn = np.zeros((_RESAMPLES, len(per_shape)))
    for index, (ratios, estimate) in enumerate(zip(per_shape, estimates, strict=True)):
        values = np.asarray(ratios, dtype=np.float64)
        if estimate is None:
            middles[index] = np.median(values)
            chosen = generator.integers(0, values.size, (_RESAMPLES, values.size))
            drawn[:, index] = np.median(values[chosen], axis=1)
        else:
            middles[index] = estimate.log_ratio
            errors = generator.standard_t(estimate.degrees, _RESAMPLES)
            drawn[:, index] = estimate.log_ratio + estimate.standard_error * errors
    low, high = np.exp(np.quantile(drawn @ shares, [0.025, 0.975]))
    spent = shares * np.asarray(baseline_us)
    return {
        "geomean_speedup": float(np.exp(middles @ shares)),
        "geomean_ci95": [float(low), float(high)],
        "time_speedup": float(spent.sum() / (spent / np.exp(middles)).sum()),
        "shapes": int((shares > 0).sum()),
    }


def decide(low: float, high: float) -> str:
    """Faster, slower, same or undecided from the interval of a speedup."""
    if low > 1.01:
        return "faster"
    if high < 0.99:
        return "slower"
    if low >= 0.98 and high <= 1.02:
        return "same"
    return "undecided"


def summarize(
    per_shape: Sequence[Sequence[float]],
    decisions: Sequence[str],
    estimates: Sequence[PairEstimate | None] = (),
) -> dict[str, Any]:
    """Summary over shapes; two levels (shapes, then pairs or else quads) for the geometric mean's interval.

    Args:
        per_shape: log ratios of each timed shape.
        decisions: decision of each timed shape.
        estimates: for each timed shape what several pairs say; None where there was one.
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
    generator = _generator()
    arrays = [np.asarray(values, dtype=np.float64) for values in per_shape]
    estimates = estimates or [None] * len(arrays)
    middles = np.array(
        [
            np.median(values) if estimate is None else estimate.log_ratio
            for values, estimate in zip(arrays, estimates, strict=True)
        ]
    )
    # A shape drawn k times in one resample gets k draws of its own: as many columns as there are shapes.
    chosen = generator.integers(0, len(arrays), (_RESAMPLES, len(arrays)))
    picked = np.empty(chosen.shape)
    for index, (values, estimate) in enumerate(zip(arrays, estimates, strict=True)):
        mine = chosen == index
        if estimate is None:
            draws = generator.integers(0, values.size, (int(mine.sum()), values.size))
            picked[mine] = np.median(values[draws], axis=1)
        else:
            # Three pairs resampled would be too narrow; their interval is Student's, and so are these draws.
            errors = generator.standard_t(estimate.degrees, int(mine.sum()))
            picked[mine] = estimate.log_ratio + estimate.standard_error * errors
    low, high = np.exp(np.quantile(picked.mean(axis=1), [0.025, 0.975]))
    return {
        "geomean_speedup": float(np.exp(middles.mean())),
        "geomean_ci95": [float(low), float(high)],
        "p5_speedup": float(np.exp(np.quantile(middles, 0.05))),
        "worst_speedup": float(np.exp(middles.min())),
        "share_slower": sum(decision == "slower" for decision in decisions) / len(decisions),
        "share_faster": sum(decision == "faster" for decision in decisions) / len(decisions),
        "shapes": len(arrays),
    }
