"""Table of measurements by shape and candidate: log speedups over each shape's best baseline, with errors.

Every timing in a verdict is paired with the best baseline, so the ratio is precise. The reference's own speed comes from the
ranking round of all baselines. Cells may be missing, since not every candidate is timed at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.dispatch.domain import dims_key
from agent.portfolio.entries import Entry, eager_speedups, timed_rows
from evaluator.verdict import ShapeResult

Array = npt.NDArray[np.float64]

_Z975 = 1.96
#: Each process has a constant bias of 1 to 2 % (`evaluator.timing.statistics`), which a single pair cannot reveal.
_ERROR_OF_A_PAIR = 0.01
#: Error of the reference's own speed, a median over a few ranking rounds.
_ERROR_OF_RANKING = 0.02


@dataclass(frozen=True)
class Table:
    """Log speedups over the best baseline, one row per shape and one column per candidate.

    Attributes:
        shapes: the rows.
        weights: weight of each shape; they sum to 1.
        entries: the columns.
        gains: log speedups (shapes x entries), NaN if not timed.
        errors: standard errors of `gains`, NaN if not timed.
        reference: log speedup of the plain reference at each shape; 0 if not timed, as if it were the best baseline.
    """

    shapes: tuple[Mapping[str, Any], ...]
    weights: Array
    entries: tuple[Entry, ...]
    gains: Array
    errors: Array
    reference: Array

    @property
    def filled(self) -> Array:
        """`gains` with missing cells set to the reference's gain or the candidate's own mean, whichever is less."""
        filled = self.gains.copy()
        for column in range(filled.shape[1]):
            missing = np.isnan(filled[:, column])
            if missing.any():
                known = filled[~missing, column]
                own = float(known.mean()) if known.size else -math.inf
                filled[missing, column] = np.minimum(self.reference[missing], own)
        return filled

    @property
    def expected(self) -> Array:
        """`filled` with noisy gains moved toward the candidate's mean, as far as their errors exceed its spread over shapes.

        A choice among many noisy gains picks the luckiest: a shape measured as 1.5x [0.4, 4.3] would be worth more than one
        measured as 1.2x [1.15, 1.25]. The normal model with DerSimonian and Laird's estimate of the spread; gains measured to
        a few percent stay as they are.
        """
        expected = self.filled
        for column in range(expected.shape[1]):
            known = ~np.isnan(self.gains[:, column])
            if known.sum() > 1:
                expected[known, column] = _shrunk(self.gains[known, column], self.errors[known, column])
        return expected

    def deployable(self, column: int) -> bool:
        """Whether an entry is a standard way to run the reference: a compiler mode or a CUDA graph."""
        return self.entries[column].candidate.origin == "compiler"


def tabulate(entries: Sequence[Entry]) -> Table:
    """The table of these candidates over all shapes where at least one was timed."""
    rows = [{dims_key(row.dims): row for row in timed_rows(entry.verdict)} for entry in entries]
    keys = list(dict.fromkeys(key for found in rows for key in found))
    shapes = [next(found[key].dims for found in rows if key in found) for key in keys]
    gains = np.full((len(keys), len(entries)), np.nan)
    errors = gains.copy()
    reference = gains.copy()
    for column, (entry, found) in enumerate(zip(entries, rows, strict=True)):
        eager = eager_speedups(entry.verdict)
        for line, key in enumerate(keys):
            if key in found:
                gains[line, column] = math.log(found[key].speedup or math.nan)
                errors[line, column] = error_of(found[key])
                reference[line, column] = math.log(eager[key]) if key in eager else math.nan
    return Table(
        shapes=tuple(shapes),
        weights=_weights(entries, keys),
        entries=tuple(entries),
        gains=gains,
        errors=errors,
        reference=np.minimum(np.nan_to_num(_row_median(reference)), 0.0),
    )


def error_of(row: ShapeResult) -> float:
    """Standard error of a row's log speedup, from the wider half of its interval; 0.1 without a valid interval."""
    if not row.speedup or not row.ci95 or not 0 < row.ci95[0] <= row.ci95[1]:
        return 0.1
    middle, low, high = (math.log(value) for value in (row.speedup, *row.ci95))
    error = max(middle - low, high - middle, 0.0) / _Z975
    return error if row.pairs else math.hypot(error, _ERROR_OF_A_PAIR)


def bounds(
    gains: Array, errors: Array, weights: Array, *, single: float = math.log(1.05)
) -> tuple[float, float]:
    """Weighted mean of log gains over some shapes and its lower 95 % bound.

    Shapes differ by more than noise, so the error is at least the standard error implied by their spread. A single shape says
    nothing about others, so `single` is subtracted from its bound.

    Returns:
        Mean and lower bound; minus infinity for no shape.
    """
    known = ~np.isnan(gains)
    gains, errors, weights = gains[known], errors[known], weights[known]
    if gains.size == 0:
        return -math.inf, -math.inf
    shares = weights / weights.sum()
    mean = float(shares @ gains)
    error = math.sqrt(float((shares**2) @ (errors**2)))
    if gains.size == 1:
        return mean, mean - _Z975 * error - single
    effective = 1 / float(shares @ shares)
    spread = float(shares @ (gains - mean) ** 2) * gains.size / (gains.size - 1)
    return mean, mean - _Z975 * max(error, math.sqrt(spread / effective))


def _shrunk(gains: Array, errors: Array) -> Array:
    """Each gain's expectation, given the others."""
    certainty = np.maximum(errors, 1e-4) ** -2.0
    mean = float(certainty @ gains / certainty.sum())
    excess = float(certainty @ (gains - mean) ** 2) - (len(gains) - 1)
    spread = max(excess, 0.0) / float(certainty.sum() - certainty @ certainty / certainty.sum())
    if spread > 0:
        mean = float((errors**2 + spread) ** -1.0 @ gains / ((errors**2 + spread) ** -1.0).sum())
    share = spread / (spread + errors**2)
    moved: Array = mean + share * (gains - mean)
    return moved


def reference_errors(table: Table) -> Array:
    """Standard errors of `Table.reference`."""
    return np.full(len(table.shapes), _ERROR_OF_RANKING)


def _weights(entries: Sequence[Entry], keys: Sequence[str]) -> Array:
    known: dict[str, float] = {}
    for entry in entries:
        for key, weight in entry.weights().items():
            known.setdefault(key, weight)
    weights = np.array([known[key] for key in keys], dtype=np.float64)
    return weights / weights.sum() if weights.size else weights


def _row_median(values: Array) -> Array:
    return np.array([np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan for row in values])
