"""Charts as SVG: no scripts, no style attributes, readable by screen readers.

For each kind of chart, a function computes the geometry in px of the view box, and a macro in `templates/charts.svg` draws it.
The style sheet sets colors by class name, which supports dark mode and print; marks also differ in shape, so color is never
the only cue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from evaluator.counting import counted
from services.dashboard import formats, ranking, words
from services.dashboard.rendering import environment

Json = Mapping[str, Any]

_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0,
          6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0, 1000.0)  # fmt: skip
# Ticks to keep first when space is short.
_FAMILIAR = (0.5, 2.0, 4.0, 10.0, 0.1)
# Limits of the widest axis. Values beyond are clamped to the edge and drawn without a cap.
_SMALLEST, _LARGEST = 1 / 32, 1024.0

# Mean advance of a sans-serif letter or digit at the charts' 12 px; used to truncate labels.
LETTER_PX = 6.4
_WIDE_PX, _NARROW_PX, _HEIGHT_PX = 1040.0, 360.0, 200.0
_LABEL_MIN_PX, _LABEL_MAX_PX = 120.0, 360.0
_ROW_PX, _NARROW_ROW_PX, _GROUP_PX = 24.0, 40.0, 30.0
_DATES = 5
#: Maximum points per curve; beyond it, each stretch of neighbors is drawn as its lowest and highest value.
_MOST_POINTS = 240


class Chart(SimpleNamespace):
    """The geometry of a chart; `kind` names the macro that draws it, `name` is unique on a page."""

    kind: str
    name: str
    description: str

    def svg(self) -> Markup:
        """The chart as markup; every text in it is escaped."""
        macro: Any = getattr(environment().get_template("charts.svg").module, self.kind)
        return Markup(macro(self))  # noqa: S704 - the template escapes


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis for ratios: 2x and 0.5x are equally far from the 1.0x line.

    Attributes:
        low: Lower end, a ratio.
        high: Upper end.
        start_px: Where the lower end is drawn; larger than `end_px` for an axis that points up.
        end_px: Where the upper end is drawn.
    """

    low: float
    high: float
    start_px: float
    end_px: float

    @classmethod
    def around(cls, values: Iterable[float], start_px: float, end_px: float) -> LogAxis:
        """Create an axis that covers the values and the 1.0x line with a margin."""
        positive = [value for value in values if value > 0]
        low = max(min([*positive, 0.92]), _SMALLEST)
        high = min(max([*positive, 1.25]), _LARGEST)
        room = (high / low) ** 0.05
        return cls(low / room, high * room, start_px, end_px)

    def at(self, value: float) -> float:
        """Position in px; values outside the axis are clamped to its ends."""
        held = min(max(value, self.low), self.high)
        share = math.log(held / self.low) / math.log(self.high / self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, gap_px: float) -> list[Tick]:
        """Round ratios at least `gap_px` apart; 1.0 is always among them."""
        inside = [tick for tick in _TICKS if self.low <= tick <= self.high]
        inside.sort(key=lambda tick: (tick != 1.0, tick not in _FAMILIAR, abs(math.log(tick))))
        kept: list[float] = []
        for tick in inside:
            if all(abs(self.at(tick) - self.at(other)) >= gap_px for other in kept):
                kept.append(tick)
        return [
            Tick(self.at(tick), "1.0×" if tick == 1.0 else f"{tick:g}×", tick == 1.0) for tick in sorted(kept)
        ]


@dataclass(frozen=True)
class Tick:
    """One labeled line of an axis; `is_one` marks the 1.0x line."""

    px: float
    text: str
    is_one: bool


def history_chart(firsts: Sequence[Json], now: datetime) -> Chart:
    """First place of a board over time, up to now: a stepped line with a dot for each new holder."""
    held = [(formats.moment(one["since"]) or now, one) for one in firsts]
    speeds = [float(one["geomean_speedup"]) for _, one in held]
    from_px, to_px, floor_px = 64.0, _WIDE_PX - 24, _HEIGHT_PX - 34
    axis = LogAxis.around(speeds, floor_px, 14.0)
    begin = held[0][0] if held else now
    span = max(now - begin, timedelta(minutes=1))

    def at(when: datetime) -> float:
        return from_px + 10 + min(max((when - begin) / span, 0.0), 1.0) * (to_px - from_px - 10)

    pattern = "%d %b %H:%M" if span < timedelta(days=3) else "%d %b %Y"
    dates = [begin + span * index / (_DATES - 1) for index in range(_DATES)] if held else []
    count = "once" if len(held) == 1 else f"{len(held)} times"
    return Chart(
        kind="history",
        name="history",
        width_px=_WIDE_PX,
        height_px=_HEIGHT_PX,
        from_px=from_px,
        to_px=to_px,
        ticks=axis.ticks(26.0),
        dates=[(at(when), f"{when:{pattern}}") for when in dates],
        dots=[
            SimpleNamespace(
                kind=_origin(one),
                x_px=at(when),
                y_px=axis.at(speed),
                title=f"{formats.clock(one['since'])}: {one['label']} ({words.origin(one.get('origin')).label}), "
                f"{formats.speedup(speed)}",
            )
            for (when, one), speed in zip(held, speeds, strict=True)
        ],
        description=f"First place was taken {count}; from {formats.speedup(speeds[0])} to {formats.speedup(speeds[-1])}."
        if held
        else "No entry has been first yet.",
    )


def search_chart(candidates: Sequence[Json]) -> Chart:
    """A job's candidates in order of arrival: the best so far as a stepped line, rejections at the bottom."""
    values = [ranking.speedup_of(candidate) for candidate in candidates]
    from_px, to_px, unmeasured_px = 84.0, _WIDE_PX - 12, _HEIGHT_PX - 30
    axis = LogAxis.around([value for value in values if value is not None], _HEIGHT_PX - 56, 14.0)
    step = (to_px - from_px) / max(len(candidates), 1)
    number_every = max(1, math.ceil(22.0 / step))
    dots: list[SimpleNamespace] = []
    steps: list[tuple[float, float]] = []
    best = 0.0
    for number, (candidate, value) in enumerate(zip(candidates, values, strict=True), start=1):
        x, y = from_px + step * (number - 0.5), unmeasured_px if value is None else axis.at(value)
        if value is not None and value > best:
            best = value
            steps.append((x, y))
        label = str(candidate.get("label") or str(candidate.get("sha256") or "")[:12])
        title = f"{number}. {label} ({words.origin(candidate.get('origin')).label}): "
        title += words.verdict(candidate.get("verdict")).label
        title += f", {formats.speedup(value)}" if value is not None else ""
        shown = number if (number - 1) % number_every == 0 else None
        dots.append(SimpleNamespace(kind=_dot(candidate, value), number=shown, x_px=x, y_px=y, title=title))
    rejected = sum(1 for dot in dots if dot.kind == "rejected")
    reached = f"best so far {formats.speedup(best)}" if best else f"speedup {words.NOT_MEASURED} so far"
    return Chart(
        kind="search",
        name="search",
        width_px=_WIDE_PX,
        height_px=_HEIGHT_PX,
        from_px=from_px,
        to_px=to_px,
        unmeasured_px=unmeasured_px,
        ticks=axis.ticks(26.0),
        dots=dots,
        best_steps=steps,
        description=f"{counted(len(dots), 'candidate')} in order of arrival, {rejected} rejected, {reached}.",
    )


def curve_chart(name: str, title: str, points: Sequence[tuple[int, float]], *, from_zero: bool) -> Chart:
    """A figure of a training run over its steps.

    Args:
        name: prefix of element ids; letters and underscores.
        title: text for readers.
        points: (step, value), with increasing steps and finite values; at least one.
        from_zero: whether the axis starts at 0 or below.
    """
    values = [value for _, value in points]
    lowest, highest = min(values), max(values)
    rounds = _round_values(min(lowest, 0.0) if from_zero else lowest, highest)
    low, high = min(lowest, rounds[0]), max(highest, rounds[-1])
    (first, begins), (last, ends) = points[0], points[-1]
    from_px, to_px, floor_px, top_px = 58.0, 508.0, 164.0, 12.0

    def x_of(step: float) -> float:
        return from_px + (to_px - from_px) * ((step - first) / (last - first) if last > first else 0.5)

    def y_of(value: float) -> float:
        return floor_px - (floor_px - top_px) * ((value - low) / (high - low) if high > low else 0.5)

    return Chart(
        kind="curve",
        name=name,
        title=title,
        width_px=520.0,
        height_px=190.0,
        from_px=from_px,
        to_px=to_px,
        ticks=[Tick(y_of(value), _short(value), False) for value in rounds],
        first=first,
        last=last,
        places=[(x_of(step), y_of(value)) for step, value in _thinned(points)],
        end=(x_of(last), y_of(ends)),
        description=f"{title}: from {_short(begins)} at step {first} to {_short(ends)} at step {last}; "
        f"lowest {_short(lowest)}, highest {_short(highest)}.",
    )


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `_MOST_POINTS` points: the lowest and highest value of each stretch of steps, in order."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretch = math.ceil(2 * len(points) / _MOST_POINTS)
    found: list[tuple[int, float]] = []
    for begin in range(0, len(points), stretch):
        part = points[begin : begin + stretch]
        found += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return found


def _round_values(low: float, high: float) -> list[float]:
    """About four round values that span an interval."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span / 4 * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(begin, end + 1)]


def _short(value: float) -> str:
    return f"{value:.1e}" if value and (abs(value) >= 1e5 or abs(value) < 1e-3) else f"{value:.4g}"


def _dot(candidate: Json, value: float | None) -> str:
    """The kind of dot: the origin if measured, else ``rejected``, ``waiting`` or ``unmeasured``."""
    word = candidate.get("verdict")
    if word in (None, "pending"):
        return "waiting"
    if word != "accepted":
        return "rejected"
    return "unmeasured" if value is None else _origin(candidate)


def _origin(one: Json) -> str:
    origin = str(one.get("origin"))
    return origin if origin in words.ORIGINS else "external"


def shape_chart(
    shapes: Sequence[Json], *, summary: Json | None = None, narrow: bool = False, name: str = "shapes"
) -> Chart:
    """Speedups at the timed shapes as a forest plot: one row per shape with mark and interval, and the 1.0x line.

    Labels have their own row or column, so they cannot collide, whatever their length.

    Args:
        shapes: ``shapes`` entries of a verdict, in display order; untimed ones are skipped.
        summary: The verdict's summary; its geometric mean and its traffic-weighted mean get rows at the bottom.
        narrow: For phones: labels above the rows instead of beside them, and no numeric intervals.
        name: Prefix of element ids, unique on the page.
    """
    timed = [shape for shape in shapes if shape.get("timed")]
    labels = [formats.dims(shape.get("dims")) for shape in timed]
    longest = max((len(label) for label in labels), default=0) * LETTER_PX + 14
    width = _NARROW_PX if narrow else _WIDE_PX
    label_px = 0.0 if narrow else min(max(longest, _LABEL_MIN_PX), _LABEL_MAX_PX)
    axis = LogAxis.around(_numbers(timed), label_px + 8, width - (64.0 if narrow else 150.0) - 8)
    row_px = _NARROW_ROW_PX if narrow else _ROW_PX
    rows: list[SimpleNamespace] = []
    groups: list[tuple[float, str]] = []
    y, split = 26.0, None
    for shape, label in zip(timed, labels, strict=True):
        if shape.get("split") != split:
            split = shape.get("split")
            groups.append((y + 19, f"{words.split(split).label} shapes"))
            y += _GROUP_PX
        row = _shape_row(shape, label, axis)
        row.label = shortened(label, width if narrow else label_px)
        row.top_px, row.height_px, row.middle_px = y, row_px, y + (row_px - 12 if narrow else row_px / 2)
        rows.append(row)
        y += row_px
    traffic = (summary or {}).get("traffic")
    for title, figures in (("geometric mean", summary), ("weighted by traffic", traffic)):
        mean = formats.finite((figures if isinstance(figures, Mapping) else {}).get("geomean_speedup"))
        if timed and mean is not None and mean > 0:
            row = _mean_row(title, mean, formats.interval_bounds(figures.get("geomean_ci95")), axis)  # type: ignore[union-attr]
            row.top_px, row.height_px, row.middle_px = y + 6, _ROW_PX, y + 6 + _ROW_PX / 2
            rows.append(row)
            y += _ROW_PX + 8
    decided = [_decision(shape) for shape in timed]
    tally = ", ".join(f"{decided.count(word)} {word}" for word in words.DECISIONS if word in decided)
    return Chart(
        kind="shapes",
        name=name,
        is_narrow=narrow,
        width_px=width,
        height_px=y + 12 if timed else 60.0,
        label_px=label_px,
        plot_from_px=axis.start_px,
        plot_to_px=axis.end_px,
        ticks=axis.ticks(44.0) if timed else [],
        groups=groups,
        rows=rows,
        description=f"{len(timed)} timed shapes: {tally}. The table of shapes has every number."
        if timed
        else "No shape has been timed.",
    )


def _numbers(timed: Sequence[Json]) -> list[float]:
    found: list[float] = []
    for shape in timed:
        speedup = formats.finite(shape.get("speedup"))
        found += [speedup] if speedup is not None else []
        found += formats.interval_bounds(shape.get("ci95")) or ()
    return found


def _shape_row(shape: Json, label: str, axis: LogAxis) -> SimpleNamespace:
    """The row of one shape; `mark_px` is None if it was not measured."""
    speedup, bounds, kind = formats.finite(shape.get("speedup")), shape.get("ci95"), _decision(shape)
    mark_px, whisker = None, None
    if speedup is not None and speedup > 0:
        mark_px, whisker = axis.at(speedup), _whisker(formats.interval_bounds(bounds), axis)
        said = f"{formats.speedup(speedup)}, 95 % interval {formats.interval(bounds)}, {words.decision(kind).label}"
        value = formats.speedup(speedup)
    else:
        said = value = "wrong result" if shape.get("correct") is False else words.NOT_MEASURED
    if formats.finite(shape.get("weight")) is not None:
        said += f", weight {formats.weight(shape.get('weight'))}"
    return SimpleNamespace(
        kind=kind,
        title=f"{label}: {said}",
        mark_px=mark_px,
        whisker=whisker,
        value=value,
        span=_span(formats.interval_bounds(bounds)),
    )


def _mean_row(title: str, mean: float, bounds: tuple[float, float] | None, axis: LogAxis) -> SimpleNamespace:
    """A diamond as wide as the interval, as usual in forest plots, with a visible minimum size."""
    x, drawn = axis.at(mean), _whisker(bounds, axis)
    low, high = (drawn.low_px, drawn.high_px) if drawn else (x, x)
    return SimpleNamespace(
        kind="mean",
        title=f"{title}: {formats.speedup(mean)}, 95 % interval {formats.interval(bounds)}",
        label=title,
        mark_px=x,
        whisker=SimpleNamespace(low_px=min(low, x - 4), high_px=max(high, x + 4)),
        value=formats.speedup(mean),
        span=_span(bounds),
    )


def _whisker(bounds: tuple[float, float] | None, axis: LogAxis) -> SimpleNamespace | None:
    """An interval; an end beyond the axis has no cap, so it does not look like the bound."""
    if bounds is None or bounds[0] <= 0:
        return None
    low, high = bounds
    return SimpleNamespace(
        low_px=axis.at(low),
        high_px=axis.at(high),
        has_low_cap=low >= axis.low,
        has_high_cap=high <= axis.high,
    )


def _span(bounds: tuple[float, float] | None) -> str:
    return f"{bounds[0]:.2f}–{bounds[1]:.2f}" if bounds else ""


def _decision(shape: Json) -> str:
    word = str(shape.get("decision"))
    return word if word in words.DECISIONS else "undecided"


def shortened(text: str, room_px: float) -> str:
    """Truncate text in the middle if it does not fit; the row's title has the full text."""
    room = max(int(room_px / LETTER_PX), 8)
    if len(text) <= room:
        return text
    tail = (room - 1) // 2
    return f"{text[: room - 1 - tail]}…{text[-tail:]}"
