"""Models learn laws that are known here, are asked about shapes that they never saw, and regret is what a choice costs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from agent.performance import analytic, models
from agent.performance.comparison import compare
from agent.performance.demand import Machine, grid, product
from agent.performance.features import Encoder, tier, waves_of
from agent.performance.scoring import errors, selection_regret

MACHINE = Machine(units=132, cache_bytes=50 << 20)


def shapes(count: int, seed: int = 1) -> list[dict[str, int]]:
    generator = random.Random(seed)

    def size() -> int:
        step = generator.choice((1, 8, 64))
        return max(round(2 ** generator.uniform(5, 12) / step) * step, step)

    return [{"M": size(), "N": size(), "K": size()} for _ in range(count)]


def law_us(dims: dict[str, int]) -> float:
    """A GPU of our own making: a launch, waves of tiles, bytes; rows that are not aligned cost twice."""
    demand = product(dims)
    waves = waves_of(demand.tiles[0], MACHINE)
    time_us = 3.0 + 0.4 * waves * demand.steps + demand.moved_bytes / 3e6
    return time_us if demand.is_aligned else 2 * time_us


def test_alignment_tiers_and_waves() -> None:
    assert [tier(size) for size in (1, 6, 8, 4096)] == [0, 1, 3, 7]
    assert [waves_of(tiles, MACHINE) for tiles in (1, 132, 133, 265)] == [1, 1, 2, 3]
    assert product({"M": 7, "N": 64, "K": 64}).is_aligned
    assert not product({"M": 64, "N": 64, "K": 65}).is_aligned
    assert grid({"rows": 4, "cols": 2048, "dtype": "float32"}).moved_bytes == 4 * 2048 * 8


def test_the_analytic_model_finds_the_prices_that_made_the_times() -> None:
    every = shapes(60)
    demands = [product(dims) for dims in every]
    times = np.array([law_us(dims) for dims in every])
    fitted = analytic.fit(demands, times, MACHINE)
    unseen = shapes(40, seed=2)
    predicted = fitted.predict_us([product(dims) for dims in unseen])
    assert errors(predicted, np.array([law_us(dims) for dims in unseen])).worst < 0.01
    assert fitted.aligned.tile == 0
    assert fitted.unaligned.per_term[0] == pytest.approx(6.0, rel=0.01)
    assert all(price >= 0 for price in (*fitted.aligned.per_term, *fitted.unaligned.per_term))


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_learns_times_and_none_predicts_nonsense(kind: str) -> None:
    every = shapes(120)
    times = np.array([law_us(dims) for dims in every])
    model = models.fit(kind, every, times, Encoder.of(every, product, MACHINE))
    predicted = model.predict(shapes(50, seed=2))
    wrong = errors(predicted, np.array([law_us(dims) for dims in shapes(50, seed=2)]))
    assert np.isfinite(predicted).all() and (predicted > 0).all()
    assert wrong.p50 < {"analytic": 0.01, "boosted_residual": 0.01}.get(kind, 0.4)


def test_times_of_nothing_are_refused() -> None:
    every = shapes(3)
    with pytest.raises(ValueError, match="above 0"):
        models.fit("tree", every, np.array([1.0, 0.0, 2.0]), Encoder.of(every, product, MACHINE))


def test_choices_have_a_column_each_and_an_unknown_one_has_none() -> None:
    every = [{"rows": 8, "cols": 64, "dtype": name} for name in ("float32", "bfloat16")]
    encoder = Encoder.of(every, grid, MACHINE)
    rows = encoder.matrix([*every, {"rows": 8, "cols": 64, "dtype": "float64"}])
    assert rows[:, -2:].tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]


def test_regret_is_the_time_lost_by_the_choice() -> None:
    nan = math.nan
    measured = np.array([[10.0, 5.0], [10.0, 20.0], [10.0, 10.5], [10.0, nan]])
    predicted = np.array([[9.0, 6.0], [9.0, 8.0], [11.0, 10.0], [9.0, 1.0]])
    regret = selection_regret(predicted, measured)
    assert regret is not None
    assert regret.shapes == 3  # the last has one member, whose choice costs nothing
    assert regret.worst == pytest.approx(1.0)
    assert regret.right == pytest.approx(1 / 3)
    assert regret.regressions == pytest.approx(2 / 3)
    assert regret.efficiency == pytest.approx((0.5 * 10 / 10.5) ** (1 / 3))
    assert selection_regret(predicted[:, :1], measured[:, :1]) is None


def test_comparison_scores_unseen_shapes_and_chooses_by_the_seen_ones() -> None:
    every = shapes(160)
    times = np.array([law_us(dims) for dims in every])
    noise = np.exp(np.random.default_rng(1).normal(0, 0.02, len(every)))
    found = compare(
        every, {"mm": times * noise, "other": times * 0.9}, product, MACHINE, kinds=("tree", "analytic")
    )
    assert found.chosen == {"mm": "analytic", "other": "analytic"}
    assert found.of_chosen["mm"].p50 < 0.03 < found.errors["tree"]["mm"].p50
    assert found.regret_of_chosen is not None and found.regret_of_chosen.efficiency > 0.99
    assert found.testing.sum() == found.of_chosen["mm"].shapes
    assert found.as_fields()["test"] + found.as_fields()["train"] == 160
    with pytest.raises(ValueError, match="neighbors"):
        compare([{"M": 8, "N": 8, "K": size} for size in (8, 9, 10)], {"mm": times[:3]}, product, MACHINE)
