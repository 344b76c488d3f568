"""The map shows what was measured, both sides on one scale, and bad sizes are named whatever dimensions are called."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from agent.performance.bad_regions import bad_regions, sentences
from agent.performance.rate_map import Points, draw, points_of, rate_map
from evaluator.verdict import from_json

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>"


def row(dims: dict[str, Any], baseline_us: float, candidate_us: float, **more: Any) -> dict[str, Any]:
    return {
        "dims": dims,
        "timed": True,
        "baseline_us": baseline_us,
        "candidate_us": candidate_us,
        "decision": "faster",
        **more,
    }


def smooth(count: int = 60, bad: set[int] | None = None, name: str = "cols") -> list[dict[str, Any]]:
    """Times of a machine that knows only bytes and a launch; at sizes in `bad` the reference takes three times as long."""
    generator = random.Random(4)
    found = []
    for index in range(count):
        rows = 8 * int(2 ** generator.uniform(0, 9))
        cols = 8 * int(2 ** generator.uniform(2, 9))
        if index in (bad or set()):
            cols += 1
        time_us = 5.0 + rows * cols / 5e4
        found.append(
            row(
                {"rows": rows, name: cols, "dtype": "float32"},
                time_us * (3 if index in (bad or set()) else 1),
                time_us / 2,
            )
        )
    return found


def found(rows: list[dict[str, Any]]) -> Points:
    points = points_of([from_json({"verdict": "accepted", "shapes": rows})])
    assert points is not None
    return points


def test_a_rate_is_the_product_of_the_sizes_over_the_time() -> None:
    points = found([row({"rows": 4, "cols": 100}, 2.0, 1.0), row({"rows": 8, "cols": 100}, 2.0, 1.0)])
    assert points.names == ("rows",)  # cols never varies
    points = found([row({"rows": 4, "cols": 100}, 2.0, 1.0), row({"rows": 8, "cols": 50}, 2.0, 1.0)])
    assert [point.rate(optimized=False) for point in points.points] == [2e8, 2e8]
    assert [point.rate(optimized=True) for point in points.points] == [4e8, 4e8]


def test_only_one_value_of_a_choice_is_drawn_and_the_rest_is_said() -> None:
    rows = [row({"n": size, "dtype": "float32"}, 2.0, 1.0) for size in (8, 16, 32)]
    points = found([*rows, row({"n": 8, "dtype": "bfloat16"}, 1.0, 1.0)])
    assert (len(points.points), points.choices, points.left_out) == (3, "dtype float32", 1)


def test_untimed_and_unmeasured_rows_are_no_points() -> None:
    nothing = [
        row({"n": 8}, 2.0, 1.0, timed=False),
        {"dims": {"n": 16}, "timed": True, "baseline_us": 1.0, "candidate_us": None},
        row({"n": 32}, float("nan"), 1.0),
        row({"n": 64}, 0.0, 1.0),
    ]
    assert points_of([from_json({"verdict": "accepted", "shapes": nothing})]) is None
    assert points_of([]) is None
    assert (
        points_of([from_json({"verdict": "accepted", "shapes": [row({"n": 8}, 2.0, 1.0)]})]) is None
    )  # no size varies


def test_the_first_verdict_that_timed_a_shape_is_the_one_that_counts() -> None:
    first, second = [row({"n": 8}, 2.0, 1.0), row({"n": 9}, 2.0, 1.0)], [row({"n": 8}, 9.0, 9.0)]
    points = points_of(
        [
            from_json({"verdict": "accepted", "shapes": first}),
            from_json({"verdict": "accepted", "shapes": second}),
        ]
    )
    assert points is not None
    assert [point.baseline_us for point in points.points] == [2.0, 2.0]


def test_both_panels_hold_every_cell_once_inside_their_frame_and_share_one_scale() -> None:
    rows = smooth()
    chart = rate_map(found(rows))
    left, right = chart.panels
    assert len(left.cells) == len(right.cells) > 10
    for panel in chart.panels:
        places = {(cell.x_px, cell.y_px) for cell in panel.cells}
        assert len(places) == len(panel.cells)
        for cell in panel.cells:
            assert panel.left_px - 0.01 <= cell.x_px
            assert cell.x_px + chart.cell_width_px <= panel.left_px + chart.panel_width_px + 0.01
            assert 46 - 0.01 <= cell.y_px <= 46 + chart.plot_height_px - chart.cell_height_px + 0.01
    assert left.left_px + chart.panel_width_px < right.left_px
    # Twice as fast everywhere, so never a lighter color.
    darkness = [[chart.legend.index(cell.color) for cell in panel.cells] for panel in chart.panels]
    assert all(mine >= theirs for theirs, mine in zip(*darkness, strict=True))
    assert sum(darkness[1]) > sum(darkness[0])


def test_the_picture_is_well_formed_and_foreign_names_stay_text() -> None:
    for as_file in (False, True):
        text = draw(rate_map(found(smooth(name=HOSTILE)), name="m"), as_file=as_file)
        tree = ET.fromstring(text)
        assert "<script" not in text
        assert any(HOSTILE in (node.text or "") for node in tree.iter(f"{SVG}text"))
        assert bool(list(tree.iter(f"{SVG}style"))) is as_file
        # A page's policy forbids inline styles.
        assert not re.search(r"\sstyle=", text)


def test_one_dimension_is_a_strip_and_huge_ranges_stay_small() -> None:
    chart = rate_map(found([row({"n": 1 << power}, 2.0, 1.0) for power in range(0, 61, 3)]))
    assert chart.up == ""
    assert len({cell.y_px for cell in chart.panels[0].cells}) == 1
    assert len(chart.panels[0].cells) <= 16


def test_a_smooth_module_has_no_bad_region() -> None:
    points = found(smooth())
    assert bad_regions(points, optimized=False) == []
    said = sentences(points)
    assert said == [
        "The reference reaches at least 70% of what neighboring sizes promise at every timed shape.",
        "The optimized module reaches at least 70% of what neighboring sizes promise at every timed shape.",
    ]


def test_bad_sizes_are_found_and_what_they_share_is_named() -> None:
    bad = {5, 17, 40}
    rows = smooth(bad=bad)
    points = found(rows)
    regions = bad_regions(points, optimized=False)
    planted = {tuple(rows[index]["dims"].values())[:2] for index in bad}
    assert {point.sizes for region in regions for point in region.points} == planted
    assert all(
        region.why in ("cols is odd", "cols is just above a power of two and cols is odd", "cols is just above a power of two")
        for region in regions
    )  # fmt: skip
    assert bad_regions(points, optimized=True) == []
    assert sum(text.startswith("The reference reaches") for text in sentences(points)) == len(regions)


def test_what_a_size_reaches_is_told_by_its_neighbors_alone() -> None:
    rows = smooth()
    rows[17]["baseline_us"] *= 1.6
    regions = bad_regions(found(rows), optimized=False)
    assert [point.dims for region in regions for point in region.points] == [rows[17]["dims"]]
    assert regions[0].shares[0] == pytest.approx(1 / 1.6, rel=0.05)


def test_what_most_sizes_are_explains_nothing() -> None:
    rows = smooth()
    for one in rows:
        one["dims"]["cols"] += 1
    rows[17]["baseline_us"] *= 3
    regions = bad_regions(found(rows), optimized=False)
    assert len(regions) == 1
    assert "odd" not in regions[0].why


def test_too_few_shapes_are_said_to_be_too_few_and_slower_shapes_are_named() -> None:
    assert sentences(found(smooth(4))) == [
        "4 timed shapes are too few to tell a bad size from its neighbors (7 would do)."
    ]
    rows = smooth()
    rows[3]["decision"] = "slower"
    dims = rows[3]["dims"]
    assert sentences(found(rows))[-1] == (
        f"Confidently slower than the reference: rows {dims['rows']}, cols {dims['cols']}, dtype float32."
    )
