"""Converts measurements at one shape to their form in a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.referee.measuring import measure, pairs
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.roles.protocol import NOTHING_COMPILED
from evaluator.shapes.traffic import Traffic
from evaluator.timing.statistics import summarize, time_speedup
from evaluator.verdict import BREAKS, HEADLINE, ShapeResult, Summary, compiled_words

#: Strata whose shapes represent others that might have been drawn.
_DRAWN = ("near", "small")
_ORDER = ("own", "near", "small", "traffic", "given", "visible", "validation", "held_out")


def timed_result(split: str, shape: OpenShape, outcome: Outcome, timing: measure.Timing) -> ShapeResult:
    """A shape where a correct candidate was timed."""
    return ShapeResult(
        dims=shape.dims,
        split=split,
        dtype=shape.output_metas[0].dtype,
        correct=True,
        error={"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs},
        timed=True,
        baselines={b.name: {"median_us": b.median_us, **b.made} for b in shape.baselines if not b.failure},
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
    """A shape where a correct candidate was not timed."""
    error = {"max_ratio": outcome.max_ratio, "max_abs": outcome.max_abs}
    return ShapeResult(shape.dims, split, shape.output_metas[0].dtype, True, error)


def captured_fields(at: pairs.Timed) -> dict[str, Any]:
    """A verdict's ``captured`` field at a shape, from all pairs of processes."""
    if len(at.captured) < pairs.LEAST:
        return {"why_not": at.why_not or "it could not be measured in enough pairs of processes"}
    return pairs.figure(at.captured).as_fields()


def summary_of(results: Sequence[ShapeResult], traffic: Traffic) -> Summary:
    """A verdict's ``summary``: headline figures over all timed shapes, by split and by stratum.

    The headline follows the user's traffic, weighted, if any of its shapes was timed. Otherwise it covers the
    task's own size and the sizes near it, half of the weight each. Otherwise it covers the given shapes.

    Args:
        results: with their strata.
        traffic: the weights of shapes.
    """
    timed = [result for result in results if result.timed]
    by_split = {
        split: _headline([r for r in timed if r.split == split], traffic) for split in _order(timed, "split")
    }
    by_stratum = {
        stratum: _figures({stratum: [r for r in timed if r.stratum == stratum]})
        for stratum in _order(timed, "stratum")
    }
    overfit = None
    if "visible" in by_split and "held_out" in by_split:
        overfit = by_split["visible"]["geomean_speedup"] / by_split["held_out"]["geomean_speedup"]
    return Summary(
        **_headline(timed, traffic), overfit_index=overfit, by_stratum=by_stratum, by_split=by_split
    )


def _order(timed: list[ShapeResult], field: str) -> list[str]:
    found = {str(getattr(result, field)) for result in timed}
    return sorted(found, key=lambda word: (_ORDER.index(word) if word in _ORDER else len(_ORDER), word))


def _headline(timed: list[ShapeResult], traffic: Traffic) -> dict[str, Any]:
    weighted = [(r, weight) for r in timed if (weight := traffic.weight(r.dims))]
    if weighted:
        rows, weights = [r for r, _ in weighted], [weight for _, weight in weighted]
        figures = _figures({"traffic": rows}, weights)
        speedups = [r.speedup or 1.0 for r in rows]
        of_traffic = {
            "geomean_speedup": figures["geomean_speedup"],
            "geomean_ci95": figures["geomean_ci95"],
            "time_speedup": time_speedup([r.baseline_us or 0.0 for r in rows], speedups, weights),
            "shapes": len({str(r.dims) for r in rows}),
            "share": traffic.share([r.dims for r in rows]),
        }
        return {**figures, **_worst(timed), "traffic": of_traffic}
    groups: dict[str, list[ShapeResult]] = {}
    for result in timed:
        groups.setdefault(str(result.stratum), []).append(result)
    for names in HEADLINE:
        if chosen := {name: groups[name] for name in names if name in groups}:
            groups = chosen
            break
    return {**_figures(groups), **_worst(timed), "traffic": None}


def against(results: list[ShapeResult], unavailable: Mapping[str, str]) -> str:
    """What speedups are measured against: the best baseline, or eager only if the reference cannot be compiled."""
    names = {name for result in results for name in result.baselines}
    off = any(NOTHING_COMPILED in why for why in unavailable.values())
    if off and not any(name.startswith("compile") for name in names):
        return f"eager only, since {NOTHING_COMPILED},"
    broken = [words for words in compiled_words(result.baselines for result in results) if BREAKS in words]
    return f"the best baseline ({broken[0]})" if broken else "the best baseline"


def _worst(timed: list[ShapeResult]) -> dict[str, float]:
    """The lowest speedup at any timed shape, including shapes outside the headline."""
    speedups = [r.speedup for r in timed if r.speedup]
    return {"worst_speedup": min(speedups)} if speedups else {}


def _figures(groups: dict[str, list[ShapeResult]], weights: Sequence[float] | None = None) -> dict[str, Any]:
    """Figures over strata of equal weight.

    Each stratum's weight is split evenly over its shapes unless ``weights`` is given.
    """
    rows = [result for group in groups.values() for result in group]
    return summarize(
        [r.log_ratios for r in rows],
        [r.decision or "undecided" for r in rows],
        [pairs.estimate(r.log_ratios, r.pairs) for r in rows],
        shares=weights or [1 / len(group) for group in groups.values() for _ in group],
        drawn=[name in _DRAWN for name, group in groups.items() for _ in group],
    )


def facts(effort: str) -> dict[str, Any]:
    """The timing protocol in words, for the verdict."""
    over = (
        "median of log ratios in each of several pairs of fresh processes; mean and Student's t interval over pairs"
        if effort == "confirm"
        else "median of log ratios, bootstrap interval"
    )
    return {
        "protocol": (
            "strictly alternating blocks of chained calls on the referee's clock, fresh contents in rotating buffers; the "
            "harness's own cost measured in the reference's process and subtracted from both; each process stopped outside its turn; one "
            f"drawn call of every block verified; {over}"
        ),
        "effort": effort,
        "regime": "cold, rotating buffers",
    }
