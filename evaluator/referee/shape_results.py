"""Measurements at one shape in the form of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.referee import measure, pairs
from evaluator.referee.correctness import Outcome
from evaluator.referee.open_shape import OpenShape
from evaluator.shapes.traffic import Traffic
from evaluator.timing.statistics import summarize, summarize_traffic
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


def summary_of(results: Sequence[ShapeResult], traffic: Traffic) -> dict[str, Any]:
    """A verdict's ``summary``: over all timed shapes, by split, and weighted by the traffic where it names some of them."""
    timed = [result for result in results if result.timed]
    by_split = {
        split: _summary([r for r in timed if r.split == split], traffic) for split in {r.split for r in timed}
    }
    overfit = None
    if "visible" in by_split and "held_out" in by_split:
        overfit = by_split["visible"]["geomean_speedup"] / by_split["held_out"]["geomean_speedup"]
    return {**_summary(timed, traffic), "overfit_index": overfit, "by_split": by_split}


def _summary(results: list[ShapeResult], traffic: Traffic) -> dict[str, Any]:
    ratios = [r.log_ratios for r in results]
    estimates = [pairs.estimate(r.log_ratios, r.pairs) for r in results]
    figures = summarize(ratios, [r.decision or "undecided" for r in results], estimates)
    weights = [traffic.weight(r.dims) or 0.0 for r in results]
    if not any(weights):
        return {**figures, "traffic": None}
    weighted = summarize_traffic(ratios, [r.baseline_us or 0.0 for r in results], weights, estimates)
    return {**figures, "traffic": {**weighted, "share": traffic.share([r.dims for r in results])}}


def facts(effort: str) -> dict[str, Any]:
    """The protocol in words, for the verdict."""
    over = (
        "median of log ratios in each of several pairs of fresh processes; their mean, Student's interval over pairs"
        if effort == "confirm"
        else "median of log ratios, bootstrap interval"
    )
    return {
        "protocol": (
            "strictly alternating blocks of chained calls on the referee's clock, fresh contents in rotating buffers; the "
            "harness's own cost learnt in the reference's process and taken off both; both processes stopped off turn; one "
            f"drawn call of every block verified; {over}"
        ),
        "effort": effort,
        "regime": "cold, rotating buffers",
    }
