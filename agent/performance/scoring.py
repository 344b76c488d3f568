"""How wrong predictions are, and what being wrong costs whoever chooses by them.

R squared is not among the figures: over sizes that differ by powers of ten it is near 1 for a model that is wrong by a third.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
#: A choice that is slower than the baseline by more counts as a regression.
_REGRESSION = 1.02


@dataclass(frozen=True)
class Errors:
    """Relative errors |predicted / measured - 1| at percentiles, and how many there were."""

    p50: float
    p90: float
    p99: float
    worst: float
    shapes: int

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Regret:
    """What choosing by predictions costs, over shapes at which several members were measured.

    Attributes:
        p50, p90, p99, worst: time of the chosen member over that of the fastest, less 1, at percentiles.
        efficiency: geometric mean of the fastest time over the chosen one, at most 1.
        right: share of shapes at which the fastest was chosen.
        regressions: share at which the choice is more than 2 % slower than the baseline.
        shapes: how many.
    """

    p50: float
    p90: float
    p99: float
    worst: float
    efficiency: float
    right: float
    regressions: float
    shapes: int

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def errors(predicted: Vector, measured: Vector) -> Errors:
    """Errors of predictions at one shape or more."""
    wrong = np.abs(predicted / measured - 1.0)
    p50, p90, p99 = np.percentile(wrong, [50, 90, 99])
    return Errors(float(p50), float(p90), float(p99), float(wrong.max()), len(wrong))


def selection_regret(predicted: Vector, measured: Vector) -> Regret | None:
    """What it costs to run the member whose predicted time is least.

    Args:
        predicted: one row per shape, one column per member, the baseline first; not-a-number where a member may not run.
        measured: likewise.

    Returns:
        None where no shape has two members.
    """
    legal = np.isfinite(predicted) & np.isfinite(measured)
    several = legal.sum(axis=1) >= 2
    if not several.any():
        return None
    predicted = np.where(legal, predicted, np.inf)[several]
    measured = np.where(legal, measured, np.inf)[several]
    rows = np.arange(len(measured))
    taken, best = measured[rows, predicted.argmin(axis=1)], measured.min(axis=1)
    lost = taken / best - 1.0
    p50, p90, p99 = np.percentile(lost, [50, 90, 99])
    baseline = measured[:, 0]
    with_baseline = np.isfinite(baseline)
    slower = taken[with_baseline] > _REGRESSION * baseline[with_baseline]
    return Regret(
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        worst=float(lost.max()),
        efficiency=float(np.exp(np.mean(np.log(best / taken)))),
        right=float((lost == 0.0).mean()),
        regressions=float(slower.mean()) if len(slower) else 0.0,
        shapes=len(lost),
    )
