"""Joules decide between members that tie; prices are never made up."""

from __future__ import annotations

from typing import Any

import pytest

from agent.performance.money import Prices, energy_aware, serving
from evaluator.verdict import from_json


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
        "verdict": "accepted",
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
    lines = serving([from_json(fast), from_json(slow)], Prices({"fast": 4.0, "slow": 1.0}))
    assert [(line.device, line.optimized) for line in lines] == [
        ("slow", True), ("slow", False), ("fast", True), ("fast", False),
    ]  # fmt: skip
    assert [line.is_cheapest for line in lines] == [True, False, False, False]
    assert lines[0].call_us == pytest.approx((3 * 12 + 28) / 4)
    assert lines[0].shapes == 2  # n = 9 was timed on one device alone
    assert lines[0].calls_per_dollar == pytest.approx(3600e6 / 16.0)


def test_without_prices_nothing_is_cheapest() -> None:
    lines = serving([from_json(verdict("fast", {1: (10.0, 8.0)}))], Prices())
    assert [line.usd_per_million for line in lines] == [None, None]
    assert [line.calls_per_dollar for line in lines] == [None, None]
    assert not any(line.is_cheapest for line in lines)
    assert (
        serving(
            [from_json(verdict("a", {1: (1.0, 1.0)})), from_json(verdict("b", {2: (1.0, 1.0)}))], Prices()
        )
        == []
    )
    assert serving([], Prices()) == []


def test_measured_joules_are_means_over_the_traffic() -> None:
    energies = {"baseline": {"joules": 0.2}, "candidate": {"joules": 0.1}}
    lines = serving(
        [from_json(verdict("fast", {1: (10.0, 8.0), 2: (20.0, 16.0)}, energy=energies))], Prices(per_kwh=0.36)
    )
    assert {line.optimized: line.joules for line in lines} == {
        True: pytest.approx(0.1),
        False: pytest.approx(0.2),
    }
    assert lines[0].usd_per_million == pytest.approx(0.1 * 1e6 / 3.6e6 * 0.36)
