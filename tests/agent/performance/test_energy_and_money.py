"""Energy models learn what time, operations and bytes cost; joules decide between members that tie; prices are never made up."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from agent.performance import energy
from agent.performance.demand import Machine, product
from agent.performance.features import Encoder
from agent.performance.money import Prices, energy_aware, serving
from agent.performance.neighborhoods import held_out, neighborhoods

MACHINE = Machine(units=132, cache_bytes=50 << 20)


def measured(count: int) -> tuple[list[dict[str, int]], Any, Any]:
    """Shapes, microseconds and joules of a machine that draws 100 W, and pays for operations and bytes."""
    generator = random.Random(5)
    shapes = [
        {name: 8 * int(2 ** generator.uniform(3, 10)) for name in ("M", "N", "K")} for _ in range(count)
    ]
    demands = [product(dims) for dims in shapes]
    times_us = np.array([4.0 + one.operations / 6e8 + one.moved_bytes / 3e6 for one in demands])
    joules = np.array(
        [
            100e-6 * time + 0.5e-12 * one.operations + 20e-12 * one.moved_bytes
            for one, time in zip(demands, times_us, strict=True)
        ]
    )
    return shapes, times_us, joules


def test_energy_is_predicted_at_unseen_shapes_with_predicted_times() -> None:
    shapes, times_us, joules = measured(120)
    testing = held_out(neighborhoods(shapes), 0.25, seed=1)
    times = {str(dims): time for dims, time in zip(shapes, times_us, strict=True)}
    found = energy.compare(
        shapes,
        joules,
        joules / times_us * 1e6,
        testing,
        times_us,
        lambda asked: np.array([times[str(dims)] * 1.1 for dims in asked]),  # 10 % too long, all of them
        Encoder.of(shapes, product, MACHINE),
    )
    assert found is not None and found.test == testing.sum()
    # Only the part that is paid by time grows with a wrong time: the law knows the rest.
    assert 0 < found.energy["analytic"].p50 < 0.09
    assert found.power["analytic"].worst < 0.1
    few = energy.compare(
        shapes[:6], joules[:6], joules[:6], testing[:6], times_us[:6], lambda asked: np.ones(len(asked)),
        Encoder.of(shapes, product, MACHINE),
    )  # fmt: skip
    assert few is None


def test_a_smooth_power_is_learned_from_fewer_shapes_than_trees_want() -> None:
    shapes, times_us, _ = measured(160)
    demands = [product(dims) for dims in shapes]
    rates = np.array([one.operations / time for one, time in zip(demands, times_us, strict=True)])
    # A power that saturates, as no law of prices does.
    watts = 100.0 + 600.0 * np.minimum(rates / np.quantile(rates, 0.8), 1.0)
    joules = watts * times_us / 1e6
    testing = held_out(neighborhoods(shapes), 0.5, seed=1)
    times = {str(dims): time for dims, time in zip(shapes, times_us, strict=True)}
    found = energy.compare(
        shapes, joules, watts, testing, times_us, lambda asked: np.array([times[str(dims)] for dims in asked]),
        Encoder.of(shapes, product, MACHINE),
    )  # fmt: skip
    assert found is not None
    by = {kind: one.p50 for kind, one in found.energy.items()}
    assert by["gaussian_process"] < 0.03
    assert by["gaussian_process"] < by["boosted_residual"] < by["analytic"]
    assert found.chosen == "gaussian_process"


def test_an_unknown_kind_is_refused() -> None:
    shapes, times_us, joules = measured(20)
    with pytest.raises(ValueError, match="known: analytic"):
        energy.fit("linear", shapes, joules, times_us, Encoder.of(shapes, product, MACHINE))


def test_joules_decide_only_between_members_that_tie() -> None:
    times = {"a": 100.0, "b": 101.5, "c": 103.0}
    assert energy_aware(times, {"a": 3.0, "b": 2.0, "c": 1.0}) == "b"  # c is 3 % slower
    assert energy_aware(times, {"a": 3.0, "b": 2.0, "c": 1.0}, within=0.05) == "c"
    assert energy_aware(times, {"a": 2.0, "b": 2.0}) == "a"
    assert energy_aware(times, {"b": 2.0}) == "a"  # nothing says that b saves anything


def test_a_call_costs_its_share_of_the_hour_and_its_electricity() -> None:
    prices = Prices({"H": 3.6}, per_kwh=0.36)
    assert prices.call_usd("H", 1e6, 3.6e6) == pytest.approx(0.001 + 0.36)
    assert Prices({"H": 3.6}).call_usd("H", 1e6, None) == pytest.approx(0.001)
    assert Prices({}, per_kwh=0.36).call_usd("H", 1e6, 3600.0) == pytest.approx(0.00036)
    assert Prices({}).call_usd("H", 1e6, 3600.0) is None
    assert prices.call_usd("H", 1e6, None) is None  # electricity has a price, joules are not known


def verdict(device: str, times: dict[int, tuple[float, float]], **more: Any) -> dict[str, Any]:
    return {
        "environment": {"device_name": device},
        "shapes": [
            {
                "dims": {"n": n},
                "timed": True,
                "baseline_us": old,
                "candidate_us": new,
                "weight": 3.0 if n == 1 else 1.0,
                **more,
            }
            for n, (old, new) in times.items()
        ],
    }


def test_the_cheapest_device_is_found_over_shared_shapes_by_traffic() -> None:
    fast = verdict("fast", {1: (10.0, 8.0), 2: (30.0, 16.0), 9: (1.0, 1.0)})
    slow = verdict("slow", {1: (20.0, 12.0), 2: (60.0, 28.0)})
    lines = serving([fast, slow], Prices({"fast": 4.0, "slow": 1.0}))
    assert [(line.device, line.optimized) for line in lines] == [
        ("slow", True), ("slow", False), ("fast", True), ("fast", False),
    ]  # fmt: skip
    assert [line.is_cheapest for line in lines] == [True, False, False, False]
    assert lines[0].call_us == pytest.approx((3 * 12 + 28) / 4)
    assert lines[0].shapes == 2  # n = 9 was timed on one device alone
    assert lines[0].calls_per_dollar == pytest.approx(3600e6 / 16.0)


def test_without_prices_nothing_is_cheapest() -> None:
    lines = serving([verdict("fast", {1: (10.0, 8.0)})], Prices())
    assert [line.usd_per_million for line in lines] == [None, None]
    assert [line.calls_per_dollar for line in lines] == [None, None]
    assert not any(line.is_cheapest for line in lines)
    assert serving([verdict("a", {1: (1.0, 1.0)}), verdict("b", {2: (1.0, 1.0)})], Prices()) == []
    assert serving([], Prices()) == []


def test_measured_joules_are_means_over_the_traffic() -> None:
    energies = {"baseline": {"joules": 0.2}, "candidate": {"joules": 0.1}}
    lines = serving(
        [verdict("fast", {1: (10.0, 8.0), 2: (20.0, 16.0)}, energy=energies)], Prices(per_kwh=0.36)
    )
    assert {line.optimized: line.joules for line in lines} == {
        True: pytest.approx(0.1),
        False: pytest.approx(0.2),
    }
    assert lines[0].usd_per_million == pytest.approx(0.1 * 1e6 / 3.6e6 * 0.36)
