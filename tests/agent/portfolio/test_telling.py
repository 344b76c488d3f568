"""What the delivered file is told of the measurements beyond its tree."""

from __future__ import annotations

import pytest

from agent.bundle.measured import constants_text
from agent.performance.analytic import CostModel
from agent.performance.demand import Machine, grid
from agent.portfolio.telling import far_apart, measured
from tests.agent.portfolio.measured import entry

SHAPES = [{"rows": rows, "cols": cols, "kind": "a"} for rows in (1, 64, 4096) for cols in (8, 100, 1024)]


def test_worst_cases_prices_and_shapes() -> None:
    good = entry("good", 2.0, speedups=[2.0] * 8 + [1.5], shapes=SHAPES)
    rare = entry("rare", 1.0, speedups=[1.0] * 3 + [None] * 6, shapes=SHAPES, order=1)
    told = measured([good, rare], ["rows", "cols", "kind"], 0)
    assert told.worst_cases == pytest.approx((1.5, 1.0))
    assert told.sizes == ("rows", "cols")
    assert told.units == 2, "threads of the verdicts' machine"
    assert told.prices is not None
    reference, first, second = told.prices
    assert second is None, "three shapes are too few"
    assert reference is not None and first is not None
    demands = [grid({"rows": 64, "cols": 1024})]
    us = [float(CostModel(*pair, Machine(2, 1)).predict_us(demands)[0]) for pair in (reference, first)]
    assert us == pytest.approx([20.0, 5.0], rel=0.1), "eager takes 20 us there, as made up"
    assert measured([good], ["rows"], 132).units == 132
    text = constants_text(told, 2, (1,), ())
    values: dict[str, object] = {}
    exec(text, values)
    assert values["COMPILED"] == (1,)
    assert values["PRICES_US"][2] is None  # type: ignore[index]


def test_shapes_to_time_again_lie_far_from_each_other() -> None:
    chosen = far_apart(SHAPES, ("rows", "cols"), 5)
    assert chosen[0] == {"rows": 64, "cols": 100, "kind": "a"}, "the middle first"
    corners = [(shape["rows"], shape["cols"]) for shape in chosen[1:]]
    assert sorted(corners) == [(1, 8), (1, 1024), (4096, 8), (4096, 1024)]
    assert len(far_apart(SHAPES, ("rows",), 8)) == 8
    assert len(far_apart(SHAPES[:2], ("rows",), 8)) == 2
