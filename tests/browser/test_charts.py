"""The charts are well-formed, say what was measured, and their labels do not touch."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from services.dashboard.charts import LETTER_PX, LogAxis, search_chart, shape_chart
from tests.browser import stored

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>"


def drawn(svg: str) -> ET.Element:
    """The chart as a tree; parsing fails on anything that is not well-formed."""
    return ET.fromstring(svg)


def shapes_drawn(shapes: list[dict[str, Any]], **options: Any) -> ET.Element:
    return drawn(shape_chart(shapes, **options).svg())


def texts(svg: ET.Element, css: str) -> list[str]:
    return [node.text or "" for node in svg.iter(f"{SVG}text") if node.get("class") == css]


@pytest.mark.parametrize("narrow", [False, True])
def test_every_timed_shape_has_a_row_a_title_and_its_figure(narrow: bool) -> None:
    verdict = stored.verdict([1.8, 0.9, 1.0, 2.4])
    svg = shapes_drawn(verdict["shapes"], summary=verdict["summary"], narrow=narrow)
    titles = [node.text for node in svg.iter(f"{SVG}title")]
    assert "rows 1 · cols 8 · float32: 1.80×, 95 % interval 1.75 to 1.85, faster" in titles
    assert "rows 7 · cols 33 · float32: 0.90×, 95 % interval 0.87 to 0.93, slower" in titles
    assert any(title and title.startswith("geometric mean: 1.40×") for title in titles)
    assert texts(svg, "value")[:4] == ["1.80×", "0.90×", "1.00×", "2.40×"]
    assert len([node for node in svg.iter(f"{SVG}line") if node.get("class") == "one"]) == 1


@pytest.mark.parametrize("narrow", [False, True])
def test_the_mean_by_traffic_has_a_row_beside_the_plain_one(narrow: bool) -> None:
    verdict = stored.verdict([2.0, 0.5], weights=[3.0, 1.0])
    svg = shapes_drawn(verdict["shapes"], summary=verdict["summary"], narrow=narrow)
    titles = [node.text for node in svg.iter(f"{SVG}title")]
    assert "geometric mean: 1.00×, 95 % interval 0.98 to 1.02" in titles
    assert "weighted by traffic: 1.41×, 95 % interval 1.37 to 1.46" in titles
    assert any(title and title.endswith("faster, weight 3") for title in titles)
    plain = shapes_drawn(stored.verdict([2.0, 0.5])["shapes"], summary=stored.verdict([2.0, 0.5])["summary"])
    assert not any("traffic" in (node.text or "") for node in plain.iter())


def test_marks_lie_on_their_side_of_the_one_line_and_inside_their_whisker() -> None:
    chart = shape_chart(stored.verdict([1.8, 0.9, 2.4])["shapes"])
    one = next(tick.px for tick in chart.ticks if tick.is_one)
    sides = [row.mark_px > one for row in chart.rows if row.mark_px is not None]
    assert sides == [True, False, True]
    for row in chart.rows:
        assert row.whisker is not None
        assert row.mark_px is not None
        assert (
            chart.plot_from_px <= row.whisker.low_px <= row.mark_px <= row.whisker.high_px <= chart.plot_to_px
        )


def test_a_shape_without_a_figure_says_so_and_has_no_mark() -> None:
    svg = shapes_drawn(stored.verdict([1.5, None])["shapes"])
    assert texts(svg, "empty") == ["not measured"]
    assert texts(svg, "value") == ["1.50×"]


def test_a_verdict_without_timed_shapes_says_so() -> None:
    svg = shapes_drawn([stored.adversarial_shape(3, 5)])
    assert texts(svg, "empty") == ["Speedup by shape: not measured."]
    assert "0.00" not in ET.tostring(svg, encoding="unicode")


def test_an_interval_beyond_the_axis_has_no_cap_that_could_be_read_as_its_bound() -> None:
    wild = stored.shape(1, 8, "visible", 2.0, (1e-6, 1e6), "undecided")
    row = shape_chart([wild]).rows[0]
    assert row.whisker is not None
    assert not row.whisker.has_low_cap
    assert not row.whisker.has_high_cap


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, "1.5", True])
def test_a_speedup_that_is_no_positive_number_is_not_drawn(value: Any) -> None:
    odd = {**stored.shape(1, 8, "visible", 1.0, None, "same"), "speedup": value}
    assert shape_chart([odd]).rows[0].mark_px is None


@pytest.mark.parametrize("narrow", [False, True])
def test_labels_cannot_touch_however_long_they_are(narrow: bool) -> None:
    dims = {f"a_rather_long_dimension_name_{index}": 123456 for index in range(6)}
    shapes = [{**stored.shape(1, 8, "visible", 1.5, (1.4, 1.6), "faster"), "dims": dims} for _ in range(9)]
    chart = shape_chart(shapes, narrow=narrow)
    room = chart.width_px if narrow else chart.label_px
    tops = [row.top_px for row in chart.rows]
    assert all(len(row.label) * LETTER_PX <= room for row in chart.rows)
    assert all(later - earlier >= 20 for earlier, later in itertools.pairwise(tops))
    assert "123456" in chart.rows[0].title


@pytest.mark.parametrize("high", [1.26, 1.6, 3.0, 12.0, 90.0, 800.0])
@pytest.mark.parametrize("low", [0.04, 0.3, 0.95])
def test_axis_labels_keep_their_distance_and_one_is_always_there(low: float, high: float) -> None:
    ticks = LogAxis.around([low, high], 100.0, 700.0).ticks(44.0)
    assert sum(tick.is_one for tick in ticks) == 1
    assert all(later.px - earlier.px >= 44.0 for earlier, later in itertools.pairwise(ticks))


def test_the_search_shows_the_best_so_far_and_every_rejection() -> None:
    candidates = [
        stored.candidate("one", "compiler", validation=stored.verdict([1.1, 1.1])),
        stored.candidate("two", "llm", screen=stored.verdict([], word="incorrect", reason="Wrong.")),
        stored.candidate("three", "human", validation=stored.verdict([1.6, 1.6])),
        stored.candidate("four", "llm", validation=stored.verdict([1.2, 1.2])),
        stored.candidate("five", "external"),
    ]
    chart = search_chart(candidates)
    assert [dot.kind for dot in chart.dots] == ["compiler", "rejected", "human", "llm", "waiting"]
    assert len(chart.best_steps) == 2
    assert chart.best_steps[1][1] < chart.best_steps[0][1]
    svg = drawn(chart.svg())
    assert len([node for node in svg.iter(f"{SVG}path") if node.get("class") == "cross"]) == 1
    assert "5 candidates in order of arrival, 1 rejected, best so far 1.60×." in [
        n.text for n in svg.iter(f"{SVG}desc")
    ]


def test_an_empty_search_can_be_drawn() -> None:
    assert "not measured so far" in search_chart([]).description
    drawn(search_chart([]).svg())


def test_text_from_outside_stays_text() -> None:
    named = {**stored.shape(1, 8, HOSTILE, 1.5, (1.4, 1.6), "faster"), "dims": {HOSTILE: HOSTILE}}
    for chart in (
        shapes_drawn([{**named, "decision": HOSTILE}]),
        drawn(search_chart([stored.candidate(HOSTILE, HOSTILE)]).svg()),
    ):
        assert not list(chart.iter(f"{SVG}script"))
        assert any("<script>" in (node.text or "") for node in chart.iter(f"{SVG}title"))
