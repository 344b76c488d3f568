"""The headline: the task's own size and sizes near it, each with half of the weight, and an interval that holds for both."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluator.cli import noise
from evaluator.referee.judging.shape_results import summary_of
from evaluator.shapes.traffic import Traffic
from evaluator.timing.statistics import summarize
from evaluator.verdict import ShapeResult, by_size


def timed(stratum: str, speedup: float, split: str = "held_out", noise: float = 0.0) -> ShapeResult:
    generator = np.random.default_rng(int(speedup * 1000))
    ratios = math.log(speedup) + noise * generator.normal(size=9)
    decision = "faster" if speedup > 1 else "slower"
    return ShapeResult(
        {"rows": round(speedup * 100)}, split, "float32", True, {}, True,
        speedup=speedup, decision=decision, log_ratios=tuple(ratios), baseline_us=9.0, stratum=stratum,
    )  # fmt: skip


def test_own_and_near_have_half_of_the_weight_each_and_small_has_none() -> None:
    summary = summary_of(
        [timed("own", 4.0), timed("near", 1.0), timed("near", 1.0), timed("near", 8.0), timed("small", 0.1)],
        Traffic(),
    )
    # 4 and the cube root of 8.
    assert summary.geomean_speedup == pytest.approx(math.sqrt(4.0 * 2.0))
    assert summary.worst_speedup == pytest.approx(0.1), "a page that says worst shape means all of them"
    assert summary.shapes == 4 and summary.traffic is None
    assert list(summary.by_stratum) == ["own", "near", "small"]
    speeds = {name: figures["geomean_speedup"] for name, figures in summary.by_stratum.items()}
    assert speeds == pytest.approx({"own": 4.0, "near": 2.0, "small": 0.1})
    assert summary.by_stratum["small"]["share_slower"] == 1.0


def test_the_headline_of_what_there_is() -> None:
    own, near, given = timed("own", 2.0), timed("near", 3.0), timed("given", 5.0)
    assert summary_of([own], Traffic()).geomean_speedup == pytest.approx(2.0)
    assert summary_of([near, timed("small", 0.5)], Traffic()).geomean_speedup == pytest.approx(3.0)
    assert summary_of([given, timed("given", 20.0)], Traffic()).geomean_speedup == pytest.approx(10.0)
    # Shapes that were given beside drawn ones do not move it.
    assert summary_of([own, given], Traffic()).geomean_speedup == pytest.approx(2.0)
    assert summary_of([timed("small", 0.5)], Traffic()).geomean_speedup == pytest.approx(0.5)
    assert summary_of([], Traffic()).geomean_speedup is None


def test_each_split_has_a_headline_of_its_own() -> None:
    summary = summary_of(
        [timed("own", 4.0, "visible"), timed("near", 1.0, "visible"), timed("own", 1.0), timed("small", 9.0)],
        Traffic(),
    )
    assert summary.by_split["visible"]["geomean_speedup"] == pytest.approx(2.0)
    assert summary.by_split["held_out"]["geomean_speedup"] == pytest.approx(1.0)
    assert summary.overfit_index == pytest.approx(2.0)
    # Own twice, near once: strata count alike, not shapes.
    assert summary.geomean_speedup == pytest.approx(math.sqrt(2.0 * 1.0))


def test_strata_stand_beside_the_headline_where_there_are_several() -> None:
    both = summary_of([timed("own", 4.0), timed("near", 1.5), timed("small", 0.5)], Traffic())
    assert by_size(both.by_stratum) == "own 4.00x, near 1.50x, small 0.50x"
    assert by_size(summary_of([timed("own", 4.0)], Traffic()).by_stratum) == by_size({}) == ""


def test_the_own_size_is_no_sample_of_others() -> None:
    """It is in every resample, so an exact timing of it adds nothing to the width."""
    near = [timed("near", 1.0), timed("near", 4.0)]
    alone = summary_of(near, Traffic()).geomean_ci95
    together = summary_of([timed("own", 100.0), *near], Traffic()).geomean_ci95
    assert math.log(together[1] / together[0]) == pytest.approx(0.5 * math.log(alone[1] / alone[0]), rel=0.1)
    exact = summary_of([timed("own", 3.0)], Traffic()).geomean_ci95
    assert exact == pytest.approx([3.0, 3.0])


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Own and four near sizes that vary between each other, each with noise of its own."""
    generator, hits = np.random.default_rng(3), 0
    own, near, between, noise = math.log(2.0), math.log(1.5), 0.2, 0.05
    for _ in range(100):
        centers = [own, *(near + between * generator.normal(size=4))]
        ratios = [list(center + noise * generator.normal(size=9)) for center in centers]
        figures = summarize(
            ratios, ["faster"] * 5, shares=[1, 0.25, 0.25, 0.25, 0.25], drawn=[False, *[True] * 4]
        )
        low, high = figures["geomean_ci95"]
        hits += low <= math.exp((own + near) / 2) <= high
    # Four shapes say little of how much shapes differ, as any bootstrap knows; without what they add it is below 60 %.
    assert 0.85 <= hits / 100 <= 0.99


@pytest.mark.parametrize(("half", "noisy"), [(0.03, False), (0.14, True)])
def test_a_noisy_machine_is_named_whatever_the_shapes_speedups(half: float, noisy: bool) -> None:
    rows = [
        replace(timed("near", speedup), ci95=(speedup / (1 + half), speedup * (1 + half)))
        for speedup in (0.5, 1.0, 8.0)
    ]
    said = noise(rows)
    assert ("the machine is noisy: intervals of single shapes are up to ±14 %" in said) is noisy
    assert bool(said) is noisy
