"""Shapes with weights: which are searched first, and how much each counts in a summary."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.errors import RoleFailure
from evaluator.referee.judging.shape_results import summary_of
from evaluator.shapes.space import IntegerDim, Space
from evaluator.shapes.traffic import Traffic, parse_traffic
from evaluator.timing.statistics import PairEstimate, summarize
from evaluator.verdict import ShapeResult
from tests.evaluator.judging import replaced, task

SPACE: Space = {"rows": IntegerDim(1, 64, 1, 8), "cols": IntegerDim(4, 64, 4, 16)}


def test_a_table_is_complete_and_begins_with_the_heaviest() -> None:
    table = parse_traffic([[{"rows": 2}, 1], {"dims": {"rows": 3, "cols": 4}, "weight": 3.0}], SPACE)
    assert table.rows == (({"rows": 3, "cols": 4}, 3.0), ({"rows": 2, "cols": 16}, 1.0))
    assert table.share([{"rows": 2, "cols": 16}, {"rows": 9, "cols": 16}]) == 0.25
    assert table.weight({"rows": 9, "cols": 16}) is None
    assert parse_traffic(None, SPACE).rows == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rows": 2}, "must be a list"),
        ([[{"rows": 2}, 1]] * 65, "at most 64"),
        ([[{"rows": 2}]], "a shape and a weight"),
        ([[{"rows": 2}, 0]], "positive number"),
        ([[{"rows": 2}, math.nan]], "positive number"),
        ([[{"rows": 2}, True]], "positive number"),
        ([[{"rows": 2}, "many"]], "positive number"),
        ([[{"rows": 65}, 1]], "outside the task's DIMS"),
        ([[{"depth": 1}, 1]], "no dimension 'depth'"),
        ([[{"rows": 8}, 1], [{}, 2]], "twice"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(value: Any, words: str) -> None:
    with pytest.raises(RoleFailure, match=words) as caught:
        parse_traffic(value, SPACE)
    assert caught.value.word == "task_rejected"


def test_drawn_shapes_follow_those_of_the_traffic() -> None:
    drawn = [{"rows": rows, "cols": 16} for rows in (8, 1, 5, 60)]
    table = Traffic(tuple(({"rows": rows, "cols": 16}, 9.0 - rows) for rows in (1, 2, 3)))

    def fits(shapes: list[dict[str, Any]]) -> list[bool]:
        return [dims["rows"] != 2 for dims in shapes]

    # What does not fit is left out; of four, two are the user's, and none comes twice.
    assert [dims["rows"] for dims in table.before(drawn, 4, fits)] == [1, 3, 8, 5]
    # However many there are, two shapes of the space are looked at as well.
    assert [dims["rows"] for dims in table.before(drawn, 2, fits)] == [1, 3, 8, 5]
    assert Traffic().before(drawn, 4, fits) is drawn


def test_weights_decide_the_summary() -> None:
    results = [timed(5, 2.0), timed(33, 0.5), timed(12, 8.0)]
    table = Traffic((({"rows": 5}, 3.0), ({"rows": 33}, 1.0)))
    summary = summary_of(results, table)
    assert summary.geomean_speedup == pytest.approx(math.sqrt(2.0))
    assert summary.geomean_ci95 == pytest.approx([math.sqrt(2.0)] * 2)
    assert (summary.worst_speedup, summary.shapes) == (pytest.approx(0.5), 2)
    traffic = summary.traffic
    # 3 calls take 5 instead of 10 microseconds, one takes 20 instead of 10.
    assert traffic["time_speedup"] == pytest.approx(40 / 35)
    assert (traffic["shapes"], traffic["share"]) == (2, 1.0)
    assert summary_of(results, Traffic()).geomean_speedup == pytest.approx(2.0)


def timed(rows: int, speedup: float) -> ShapeResult:
    ratios = (math.log(speedup),) * 9
    return ShapeResult(
        {"rows": rows},
        "visible",
        "float32",
        True,
        {},
        True,
        baseline_us=10.0,
        speedup=speedup,
        log_ratios=ratios,
    )


def test_pairs_widen_the_weighted_interval_by_the_weight_of_their_shape() -> None:
    noisy = PairEstimate(0.0, 0.1, 2.0, 20)

    def interval(shares: list[float]) -> list[float]:
        figures = summarize([[0.0] * 9] * 2, ["same"] * 2, [noisy, None], shares=shares, drawn=[False, False])
        found: list[float] = figures["geomean_ci95"]
        return found

    wide, narrow = interval([9.0, 1.0]), interval([1.0, 9.0])
    assert math.log(wide[1] / wide[0]) == pytest.approx(9 * math.log(narrow[1] / narrow[0]), rel=0.2)
    assert math.log(wide[1] / wide[0]) == pytest.approx(0.9 * 0.1 * 2 * 2.086, rel=0.15)


ROWS = task("""
    from kernelbench_tasks import Dim

    DIMS = {"rows": Dim(1, 64, default=8)}
    TRAFFIC = [({"rows": 5}, 1.0), ({"rows": 33}, 3.0)]

    class Model(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1)

    def get_inputs(rows=8):
        return [torch.randn(rows, 16)]

    def get_init_inputs():
        return []
    """)


def test_the_tasks_own_table_and_one_of_the_request(referee: Referee) -> None:
    own = referee.describe(ROWS)
    for split in ("visible", "validation"):
        assert own.shapes[split][:2] == [{"rows": 33}, {"rows": 5}]
        assert len(own.shapes[split]) > 2
        assert own.strata[split][:2] == ["traffic", "traffic"]
        assert len(own.strata[split]) == len(own.shapes[split])
        assert set(own.strata[split][2:]) == {"near"}
    given = referee.describe(ROWS, traffic=[{"dims": {"rows": 7}, "weight": 2}])
    assert given.shapes["visible"][0] == {"rows": 7}
    assert {"rows": 33} not in given.shapes["visible"][:1]
    assert given.traffic == ({"dims": {"rows": 7}, "weight": 2.0},)
    refused = referee.describe(ROWS, traffic=[{"dims": {"rows": 65}, "weight": 2}])
    assert (refused.ok, refused.verdict) == (False, "task_rejected")
    assert "rows=65" in refused.reason


@pytest.mark.slow
def test_a_verdict_states_the_weighted_figure(referee: Referee) -> None:
    shapes = {"visible": [{"rows": 5}, {"rows": 33}, {"rows": 12}]}
    verdict = referee.evaluate(ROWS, replaced(ROWS), splits=["visible"], shapes=shapes)
    assert verdict.verdict == "accepted", verdict.reason
    weights = {row.dims["rows"]: row.weight for row in verdict.shapes}
    assert weights == {5: 1.0, 33: 3.0, 12: None}
    assert {row.stratum for row in verdict.shapes} == {"given"}
    speeds = {row.dims["rows"]: math.log(row.speedup) for row in verdict.shapes}
    summary = verdict.summary
    expected = math.exp((speeds[5] + 3 * speeds[33]) / 4)
    assert summary.geomean_speedup == pytest.approx(expected, rel=1e-6)
    traffic = summary.traffic
    assert traffic["geomean_speedup"] == pytest.approx(expected, rel=1e-6)
    assert (traffic["shapes"], traffic["share"]) == (2, 1.0)
    everything = summary.by_stratum["given"]["geomean_speedup"]
    assert everything == pytest.approx(math.exp(sum(speeds.values()) / 3), rel=1e-6)
