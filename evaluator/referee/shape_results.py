"""Measurements at one shape in the form of a verdict."""

from __future__ import annotations

from typing import Any

from evaluator.referee import measure, pairs
from evaluator.referee.correctness import Outcome
from evaluator.referee.open_shape import OpenShape
from evaluator.verdict import ShapeResult


def timed_result(split: str, shape: OpenShape, outcome: Outcome, timing: measure.Timing) -> ShapeResult:
    """What a verdict says of a shape where a right candidate was timed."""
    return ShapeResult(
        dims=shape.dims,
        split=split,
        dtype=shape.output_metas[0].dtype,
        correct=True,
        error={"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs},
        timed=True,
        baselines={b.name: {"median_us": b.median_us} for b in shape.baselines if not b.failure},
        best_baseline=timing.baseline,
        baseline_us=timing.baseline_us,
        candidate_us=timing.candidate_us,
        speedup=timing.speedup,
        ci95=timing.ci95,
        decision=timing.decision,
        log_ratios=timing.log_ratios,
        disturbed_quads=timing.disturbed,
        clock=timing.clock,
        cycles=timing.cycles,
        pairs=timing.pairs,
    )


def untimed_result(split: str, shape: OpenShape, outcome: Outcome) -> ShapeResult:
    """What a verdict says of a shape where a right candidate was not timed."""
    error = {"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs}
    return ShapeResult(shape.dims, split, shape.output_metas[0].dtype, True, error)


def captured_fields(at: pairs.Timed) -> dict[str, Any]:
    """A verdict's ``captured`` at a shape, from all pairs of processes."""
    if len(at.captured) < pairs.LEAST:
        return {"why_not": at.why_not or "it could not be measured in enough pairs of processes"}
    return pairs.figure(at.captured).as_fields()
