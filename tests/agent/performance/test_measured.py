"""Verdict rows become one table of runtimes, and with enough of them the report says how predictable they are."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from agent.performance.measured import REFERENCE, predictability, runtimes


def verdict(name: str, rows: list[tuple[dict[str, Any], float, float]]) -> dict[str, Any]:
    return {
        "candidate": {"sha256": name},
        "shapes": [
            {"dims": dims, "timed": True, "baseline_us": old, "candidate_us": new} for dims, old, new in rows
        ],
    }


def test_each_member_has_a_column_and_the_reference_the_first() -> None:
    found = runtimes(
        [
            verdict("a", [({"n": 8}, 4.0, 2.0), ({"n": 9}, 8.0, 4.0)]),
            verdict("b", [({"n": 9}, 18.0, 3.0), ({"m": 1}, 1.0, 1.0)]),
        ]
    )
    assert [dict(shape) for shape in found.shapes] == [{"n": 8}, {"n": 9}]
    assert list(found.times_us) == [REFERENCE, "a", "b"]
    assert found.times_us[REFERENCE].tolist() == pytest.approx(
        [4.0, 12.0]
    )  # timed twice: the mean of the logarithms
    assert found.times_us["a"].tolist() == [2.0, 4.0]
    assert math.isnan(found.times_us["b"][0]) and found.times_us["b"][1] == pytest.approx(3.0)


def test_untimed_rows_and_empty_verdicts_are_nothing() -> None:
    assert runtimes([{}, {"shapes": [{"dims": {"n": 1}, "timed": False}]}]).shapes == ()
    assert predictability(runtimes([]), 4) is None


def test_a_law_over_enough_shapes_is_found_and_few_shapes_say_nothing() -> None:
    generator = random.Random(2)
    rows = []
    for _ in range(48):
        dims = {"rows": int(2 ** generator.uniform(4, 12)), "cols": 4 * int(2 ** generator.uniform(3, 10))}
        time_us = 5.0 + dims["rows"] * dims["cols"] / 1e5
        rows.append((dims, time_us, time_us / 2))
    found = predictability(runtimes([verdict("a", rows)]), 4)
    assert found is not None
    assert list(found.chosen) == [REFERENCE, "a"]
    assert set(found.chosen.values()) <= {"analytic", "boosted_residual"}
    assert found.errors["tree"]["all"].p90 > 0.2
    assert found.of_chosen["all"].p50 < 0.02
    assert found.regret_of_chosen is not None and found.regret_of_chosen.efficiency == 1.0
    assert predictability(runtimes([verdict("a", rows[:20])]), 4) is None
    nothing = [(dims, old, math.nan) for dims, old, _ in rows]
    alone = predictability(runtimes([verdict("a", nothing)]), 4)
    assert alone is not None and list(alone.chosen) == [REFERENCE]
    assert np.isfinite(alone.of_chosen["all"].worst)
