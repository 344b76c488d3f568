"""Intervals cover what they should, and decisions follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluator.timing.statistics import decide, median_interval, summarize


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    truth, hits = 1.3, 0
    for _ in range(100):
        _, low, high = median_interval(math.log(truth) + generator.normal(0, 0.05, 20))
        hits += low <= truth <= high
    assert 0.85 <= hits / 100 <= 1.0


def test_one_wild_quad_does_not_move_the_median() -> None:
    calm = [math.log(1.5)] * 9
    assert median_interval([*calm, math.log(50)])[0] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.02, 1.4, "faster"), (0.8, 0.98, "slower"), (0.985, 1.015, "same"), (0.9, 1.2, "undecided")],
)
def test_decisions(low: float, high: float, word: str) -> None:
    assert decide(low, high) == word


def test_summary_is_the_geometric_mean_with_its_interval() -> None:
    summary = summarize([[math.log(2)] * 5, [math.log(0.5)] * 5], ["faster", "slower"])
    assert summary["geomean_speedup"] == pytest.approx(1.0)
    assert summary["worst_speedup"] == pytest.approx(0.5)
    assert summary["share_slower"] == 0.5
    low, high = summary["geomean_ci95"]
    assert low < 1.0 < high


def test_nothing_timed_is_nothing_claimed() -> None:
    assert summarize([], [])["geomean_speedup"] is None
