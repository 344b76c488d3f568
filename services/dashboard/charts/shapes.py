"""Speedup at each shape as a forest plot: one row a shape, a mark, its interval, the 1.0x line.

Labels have a row or a column of their own, so that they cannot collide however long they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard import formats, words
from services.dashboard.charts.axis import LogAxis, Tick

Json = Mapping[str, Any]

WIDE_PX, NARROW_PX = 1040.0, 360.0
# Mean advance of a letter or digit of a sans face at the chart's 12 px; labels are cut by it.
LETTER_PX = 6.4
LABEL_MIN_PX, LABEL_MAX_PX = 120.0, 360.0
ROW_PX, NARROW_ROW_PX, GROUP_PX, TOP_PX = 24.0, 40.0, 30.0, 26.0
TICK_GAP_PX = 44.0


@dataclass(frozen=True)
class Whisker:
    """An interval in px; an end beyond the axis has no cap, so that it cannot be read as the bound."""

    low_px: float
    high_px: float
    has_low_cap: bool
    has_high_cap: bool


@dataclass(frozen=True)
class Row:
    """One shape, or a geometric mean (`kind` "mean"). `mark_px` is ``None`` where nothing was measured."""

    kind: str
    title: str
    label: str
    top_px: float
    middle_px: float
    height_px: float
    mark_px: float | None
    whisker: Whisker | None
    value: str
    span: str


@dataclass(frozen=True)
class Group:
    """The heading of a split."""

    text: str
    baseline_px: float


@dataclass(frozen=True)
class ShapeChart:
    """What `svg.shapes_svg` draws; all lengths in px of the view box."""

    name: str
    is_narrow: bool
    width_px: float
    height_px: float
    label_px: float
    plot_from_px: float
    plot_to_px: float
    ticks: tuple[Tick, ...]
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    description: str


def shape_chart(
    shapes: Sequence[Json], *, summary: Json | None = None, narrow: bool = False, name: str = "shapes"
) -> ShapeChart:
    """Works out the chart of a verdict's timed shapes.

    Args:
        shapes: ``shapes`` entries of a verdict, in the order to show; those not timed are left out.
        summary: The verdict's summary; its geometric mean gets a row of its own at the foot, and so does the one that is
            weighted by the traffic.
        narrow: For a phone: labels above their rows instead of beside them, no interval in figures.
        name: Prefix of element ids, unique on the page.
    """
    timed = [shape for shape in shapes if shape.get("timed")]
    labels = [formats.dims(shape.get("dims")) for shape in timed]
    longest = max((len(label) for label in labels), default=0) * LETTER_PX + 14
    width = NARROW_PX if narrow else WIDE_PX
    label_px = 0.0 if narrow else min(max(longest, LABEL_MIN_PX), LABEL_MAX_PX)
    values_px = 64.0 if narrow else 150.0
    axis = LogAxis.around(_numbers(timed), label_px + 8, width - values_px - 8)
    row_px = NARROW_ROW_PX if narrow else ROW_PX

    rows: list[Row] = []
    groups: list[Group] = []
    y, split = TOP_PX, None
    for shape, label in zip(timed, labels, strict=True):
        if shape.get("split") != split:
            split = shape.get("split")
            groups.append(Group(f"{words.split(split).label} shapes", y + 19))
            y += GROUP_PX
        middle = y + (row_px - 12 if narrow else row_px / 2)
        rows.append(_shape_row(shape, label, axis, y, middle, row_px, width if narrow else label_px))
        y += row_px
    for title, figures in _means(summary or {}) if timed else ():
        mean = formats.finite(figures.get("geomean_speedup"))
        if mean is not None and mean > 0:
            bounds = formats.interval_bounds(figures.get("geomean_ci95"))
            rows.append(_mean_row(title, mean, bounds, axis, y + 6))
            y += ROW_PX + 8
    return ShapeChart(
        name=name,
        is_narrow=narrow,
        width_px=width,
        height_px=y + 12 if timed else 60.0,
        label_px=label_px,
        plot_from_px=axis.start_px,
        plot_to_px=axis.end_px,
        ticks=tuple(axis.ticks(TICK_GAP_PX)) if timed else (),
        groups=tuple(groups),
        rows=tuple(rows),
        description=_description(timed),
    )


def _numbers(timed: Sequence[Json]) -> list[float]:
    found: list[float] = []
    for shape in timed:
        speedup = formats.finite(shape.get("speedup"))
        found += [speedup] if speedup is not None else []
        found += formats.interval_bounds(shape.get("ci95")) or ()
    return found


def _shape_row(
    shape: Json, label: str, axis: LogAxis, top_px: float, middle_px: float, height_px: float, room_px: float
) -> Row:
    speedup, bounds = formats.finite(shape.get("speedup")), formats.interval_bounds(shape.get("ci95"))
    kind = _decision(shape)
    is_drawn = speedup is not None and speedup > 0
    if is_drawn:
        said = f"{formats.speedup(speedup)}, 95 % interval {formats.interval(bounds)}, {words.decision(kind).label}"
        value = formats.speedup(speedup)
    else:
        said = value = "wrong result" if shape.get("correct") is False else words.NOT_MEASURED
    if formats.finite(shape.get("weight")) is not None:
        said += f", weight {formats.weight(shape.get('weight'))}"
    return Row(
        kind=kind,
        title=f"{label}: {said}",
        label=shortened(label, room_px),
        top_px=top_px,
        middle_px=middle_px,
        height_px=height_px,
        mark_px=axis.at(speedup) if speedup is not None and is_drawn else None,
        whisker=_whisker(bounds, axis) if is_drawn else None,
        value=value,
        span=_span(bounds) if is_drawn else "",
    )


def _means(summary: Json) -> tuple[tuple[str, Json], ...]:
    traffic = summary.get("traffic")
    plain = ("geometric mean", summary)
    return (plain, ("weighted by traffic", traffic)) if isinstance(traffic, Mapping) else (plain,)


def _mean_row(
    title: str, mean: float, bounds: tuple[float, float] | None, axis: LogAxis, top_px: float
) -> Row:
    drawn = _whisker(bounds, axis)
    x = axis.at(mean)
    # A diamond as wide as the interval, as forest plots have it, but never too small to see.
    low, high = (drawn.low_px, drawn.high_px) if drawn else (x, x)
    return Row(
        kind="mean",
        title=f"{title}: {formats.speedup(mean)}, 95 % interval {formats.interval(bounds)}",
        label=title,
        top_px=top_px,
        middle_px=top_px + ROW_PX / 2,
        height_px=ROW_PX,
        mark_px=x,
        whisker=Whisker(min(low, x - 4), max(high, x + 4), has_low_cap=False, has_high_cap=False),
        value=formats.speedup(mean),
        span=_span(bounds),
    )


def _whisker(bounds: tuple[float, float] | None, axis: LogAxis) -> Whisker | None:
    if bounds is None or bounds[0] <= 0:
        return None
    low, high = bounds
    return Whisker(axis.at(low), axis.at(high), low >= axis.low, high <= axis.high)


def _span(bounds: tuple[float, float] | None) -> str:
    return f"{bounds[0]:.2f}–{bounds[1]:.2f}" if bounds else ""


def _decision(shape: Json) -> str:
    word = str(shape.get("decision"))
    return word if word in words.DECISIONS else "undecided"


def shortened(text: str, room_px: float) -> str:
    """The text, cut in the middle if it would not fit; the whole of it is in the row's title."""
    room = max(int(room_px / LETTER_PX), 8)
    if len(text) <= room:
        return text
    tail = (room - 1) // 2
    return f"{text[: room - 1 - tail]}…{text[-tail:]}"


def _description(timed: Sequence[Json]) -> str:
    if not timed:
        return "No shape has been timed."
    decided = [_decision(shape) for shape in timed]
    tally = ", ".join(f"{decided.count(word)} {word}" for word in words.DECISIONS if word in decided)
    return f"{len(timed)} timed shapes: {tally}. The table of shapes has every number."
