"""Charts drawn on the server as SVG: no script, no style attribute, readable by screen readers.

Every text is escaped. Colors come from the style sheet through class names, so that dark mode and
print work; every mark also differs in form, so that color is never the only carrier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from services.dashboard import formats, words

Json = Mapping[str, Any]

# Chart text is set at 12 px; 6.6 px is the mean advance of a sans digit or letter at that size, 7.25 of monospace.
TEXT_ADVANCE_PX = 6.6
ROW_PX = 24
GROUP_PX = 30
TICK_CANDIDATES = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0,
    6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0, 1000.0,
)  # fmt: skip
MIN_TICK_GAP_PX = 44
UNMEASURED_ABOVE_FOOT_PX = 30


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis, so that 2x and 0.5x lie equally far from the 1.0x line.

    Attributes:
        low, high: Ends of the domain, as ratios.
        start_px, end_px: Ends of the range; ``start_px`` may be larger for an axis that points up.
    """

    low: float
    high: float
    start_px: float
    end_px: float

    def at(self, value: float) -> float:
        """Position in px; values outside the domain are held at its ends."""
        held = min(max(value, self.low), self.high)
        share = math.log(held / self.low) / math.log(self.high / self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, gap_px: float = MIN_TICK_GAP_PX) -> list[float]:
        """Round ratios whose labels cannot touch; 1.0 is always among them."""
        inside = [tick for tick in TICK_CANDIDATES if self.low <= tick <= self.high]
        # The ratios that people think in come first, the rest fill what room is left.
        inside.sort(key=lambda tick: (tick != 1.0, tick not in (0.5, 2.0, 4.0, 10.0, 0.1), abs(math.log(tick))))
        kept: list[float] = []
        for tick in inside:
            if all(abs(self.at(tick) - self.at(other)) >= gap_px for other in kept):
                kept.append(tick)
        return sorted(kept)


def _domain(values: Iterable[float]) -> tuple[float, float]:
    """A domain that holds the values and the 1.0x line with some air, but at most a factor of 1000 wide."""
    positive = [value for value in values if value > 0]
    low, high = min([*positive, 0.92]), max([*positive, 1.25])
    low, high = max(low, 1 / 32), min(high, 1024.0)
    air = (high / low) ** 0.05
    return low / air, high * air


def _tick_text(tick: float) -> str:
    return f"{tick:g}×" if tick != 1.0 else "1.0×"


def _shortened(text: str, limit_px: float) -> str:
    """The text, cut in the middle if it would not fit; the whole of it goes into the row's title."""
    room = max(int(limit_px / TEXT_ADVANCE_PX), 8)
    if len(text) <= room:
        return text
    tail = (room - 1) // 2
    return f"{text[: room - 1 - tail]}…{text[-tail:]}"


def _mark(kind: str, x: float, y: float) -> str:
    """Faster: disc. Same: square. Slower: triangle pointing left. Undecided: hollow diamond."""
    css = escape(f"mark {kind}")
    if kind == "same":
        return f'<rect class="{css}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    if kind == "slower":
        points = f"{x - 5.5:.1f},{y:.1f} {x + 4:.1f},{y - 5:.1f} {x + 4:.1f},{y + 5:.1f}"
        return f'<polygon class="{css}" points="{points}"/>'
    if kind == "undecided":
        points = f"{x - 5:.1f},{y:.1f} {x:.1f},{y - 5:.1f} {x + 5:.1f},{y:.1f} {x:.1f},{y + 5:.1f}"
        return f'<polygon class="{css}" points="{points}"/>'
    return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _decision(shape: Json) -> str:
    word = shape.get("decision")
    return word if word in words.DECISIONS else "undecided"


def speedup_by_shape(
    shapes: Sequence[Json], *, summary: Json | None = None, narrow: bool = False, name: str = "shapes"
) -> Markup:
    """Speedup at each timed shape with its 95 % interval, one row a shape, against the 1.0x line.

    Args:
        shapes: ``shapes`` entries of a verdict, already in the order to show.
        summary: The verdict's summary; its geometric mean gets a row of its own at the foot.
        narrow: Draw for a phone: labels above their rows instead of beside them.
        name: Prefix of element ids, unique on the page.

    Returns:
        An ``<svg>`` element; without timed shapes it says so.
    """
    timed = [shape for shape in shapes if shape.get("timed")]
    width = 360.0 if narrow else 1040.0
    labels = [formats.dims(shape.get("dims")) for shape in timed]
    longest = max((len(label) for label in labels), default=0) * TEXT_ADVANCE_PX
    label_px = 0.0 if narrow else min(max(longest + 14, 120.0), 330.0)
    value_px = 64.0 if narrow else 142.0
    left, right = label_px + 8, width - value_px - 8
    numbers: list[float] = []
    for shape in timed:
        numbers += [number for number in [formats.finite(shape.get("speedup"))] if number is not None]
        numbers += list(formats.interval_bounds(shape.get("ci95")) or ())
    mean = formats.finite((summary or {}).get("geomean_speedup")) if timed else None
    low, high = _domain(numbers)
    axis = LogAxis(low, high, left, right)

    row_px = 40 if narrow else ROW_PX
    top = 26.0
    y = top
    body: list[str] = []
    group = None
    for index, shape in enumerate(timed):
        if shape.get("split") != group:
            group = shape.get("split")
            said = words.split(group)
            body.append(f'<text class="group" x="0" y="{y + 19:.1f}">{escape(said.label)} shapes</text>')
            y += GROUP_PX
        body.append(_shape_row(shape, labels[index], axis, y, row_px, label_px, width, narrow=narrow))
        y += row_px
    if mean is not None and mean > 0:
        body.append(_mean_row(mean, formats.interval_bounds((summary or {}).get("geomean_ci95")), axis, y + 6, label_px, width, narrow))
        y += ROW_PX + 8
    bottom = y + 4
    height = bottom + 8

    ticks = [f'<text class="axis" x="{axis.at(t):.1f}" y="14" text-anchor="middle">{_tick_text(t)}</text>' for t in axis.ticks()]
    rules = [
        f'<line class="{"one" if tick == 1.0 else "grid"}" x1="{axis.at(tick):.1f}" x2="{axis.at(tick):.1f}" '
        f'y1="20" y2="{bottom:.1f}"/>'
        for tick in axis.ticks()
    ]
    if not timed:
        height = 72
        ticks, rules = [], []
        body = [f'<text class="empty" x="0" y="40">Speedup by shape: {words.NOT_MEASURED}.</text>']
    told = _chart_summary(timed)
    return Markup(
        f'<svg class="chart {"narrow" if narrow else "wide"}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-labelledby="{escape(name)}-title {escape(name)}-desc" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{escape(name)}-title">Speedup over the best baseline, by shape</title>'
        f'<desc id="{escape(name)}-desc">{escape(told)}</desc>'
        + "".join(rules + ticks + body)
        + "</svg>"
    )


def _shape_row(
    shape: Json, label: str, axis: LogAxis, y: float, row_px: float, label_px: float, width: float, *, narrow: bool
) -> str:
    middle = y + (row_px - 12 if narrow else row_px / 2)
    value, bounds, kind = formats.finite(shape.get("speedup")), formats.interval_bounds(shape.get("ci95")), _decision(shape)
    title = f"{label}: {formats.speedup(value)}, 95 % interval {formats.interval(bounds)}, {words.decision(kind).label}"
    parts = [f'<g class="row"><title>{escape(title)}</title>']
    parts.append(f'<rect class="hit" x="0" y="{y:.1f}" width="{width:.0f}" height="{row_px:.1f}"/>')
    if narrow:
        parts.append(f'<text class="label" x="0" y="{y + 15:.1f}">{escape(_shortened(label, width))}</text>')
    else:
        shown = escape(_shortened(label, label_px))
        parts.append(f'<text class="label" x="{label_px:.1f}" y="{middle + 4:.1f}" text-anchor="end">{shown}</text>')
    if value is None or value <= 0:
        said = words.NOT_MEASURED if shape.get("correct") is not False else "wrong result"
        parts.append(f'<text class="empty" x="{axis.start_px:.1f}" y="{middle + 4:.1f}">{said}</text></g>')
        return "".join(parts)
    if bounds is not None and bounds[0] > 0:
        parts.append(_whisker(axis, bounds, middle, kind))
    parts.append(_mark(kind, axis.at(value), middle))
    figures = formats.speedup(value)
    parts.append(f'<text class="value" x="{axis.end_px + 62:.1f}" y="{middle + 4:.1f}" text-anchor="end">{figures}</text>')
    if bounds is not None and not narrow:
        span = f"{bounds[0]:.2f}–{bounds[1]:.2f}"
        parts.append(f'<text class="span" x="{width:.1f}" y="{middle + 4:.1f}" text-anchor="end">{span}</text>')
    parts.append("</g>")
    return "".join(parts)


def _mean_row(
    mean: float, bounds: tuple[float, float] | None, axis: LogAxis, y: float, label_px: float, width: float, narrow: bool
) -> str:
    """The geometric mean as a diamond as wide as its interval, as forest plots draw it."""
    middle, x = y + ROW_PX / 2, axis.at(mean)
    low, high = (axis.at(bounds[0]), axis.at(bounds[1])) if bounds and bounds[0] > 0 else (x, x)
    low, high = min(low, x - 4), max(high, x + 4)
    diamond = f"{low:.1f},{middle:.1f} {x:.1f},{middle - 6:.1f} {high:.1f},{middle:.1f} {x:.1f},{middle + 6:.1f}"
    title = f"geometric mean: {formats.speedup(mean)}, 95 % interval {formats.interval(bounds)}"
    label_x, anchor = (0.0, "start") if narrow else (label_px, "end")
    parts = [
        f'<g class="row"><title>{escape(title)}</title>',
        f'<line class="divider" x1="0" x2="{width:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="group" x="{label_x:.1f}" y="{middle + 4:.1f}" text-anchor="{anchor}">geometric mean</text>',
        f'<polygon class="mean" points="{diamond}"/>',
        f'<text class="value" x="{axis.end_px + 62:.1f}" y="{middle + 4:.1f}" text-anchor="end">{formats.speedup(mean)}</text>',
    ]
    if bounds is not None and not narrow:
        span = f"{bounds[0]:.2f}–{bounds[1]:.2f}"
        parts.append(f'<text class="span" x="{width:.1f}" y="{middle + 4:.1f}" text-anchor="end">{span}</text>')
    return "".join(parts) + "</g>"


def _whisker(axis: LogAxis, bounds: tuple[float, float], y: float, kind: str) -> str:
    low, high = axis.at(bounds[0]), axis.at(bounds[1])
    parts = [f'<line class="whisker {escape(kind)}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    for x, is_inside in ((low, bounds[0] >= axis.low), (high, bounds[1] <= axis.high)):
        # An end that lies outside the axis gets no cap, so that it cannot be read as the bound.
        if is_inside:
            parts.append(f'<line class="whisker {escape(kind)}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4:.1f}" y2="{y + 4:.1f}"/>')
    return "".join(parts)


def _chart_summary(timed: Sequence[Json]) -> str:
    if not timed:
        return "No shape has been timed."
    tally: dict[str, int] = {}
    for shape in timed:
        tally[_decision(shape)] = tally.get(_decision(shape), 0) + 1
    said = ", ".join(f"{tally[word]} {word}" for word in words.DECISIONS if word in tally)
    return f"{len(timed)} timed shapes: {said}. The table below the chart has every number."


def search_progress(candidates: Sequence[Json], *, name: str = "progress") -> Markup:
    """Each candidate in order of arrival, with the best so far as a line; rejections are crosses at the foot."""
    width, height = 1040.0, 200.0
    left, right, top, floor = 84.0, width - 12, 14.0, height - 56
    points: list[tuple[Json, float | None]] = []
    for candidate in candidates:
        points.append((candidate, _progress_value(candidate)))
    values = [value for _, value in points if value is not None]
    low, high = _domain(values)
    axis = LogAxis(low, high, floor, top)
    step = (right - left) / max(len(points), 1)
    parts: list[str] = []
    for tick in axis.ticks(gap_px=26):
        y = axis.at(tick)
        parts.append(f'<line class="{"one" if tick == 1.0 else "grid"}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{_tick_text(tick)}</text>')
    path, best = "", 0.0
    marks: list[str] = []
    for index, (candidate, value) in enumerate(points):
        x = left + step * (index + 0.5)
        word = candidate.get("verdict")
        label = str(candidate.get("label") or candidate.get("sha256", "")[:12])
        title = f"{index + 1}. {label} ({words.origin(candidate.get('origin')).label}): {words.verdict(word).label}"
        title += f", {formats.speedup(value)}" if value is not None else ""
        if value is not None and value > best:
            y = axis.at(value)
            path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
            best = value
        marks.append(f'<g class="row"><title>{escape(title)}</title>{_progress_mark(candidate, x, value, axis, height)}</g>')
    if path:
        parts.append(f'<path class="best" d="{path}H{right:.1f}"/>')
    label_every = max(1, math.ceil(22 / step)) if points else 1
    for index in range(0, len(points), label_every):
        x = left + step * (index + 0.5)
        parts.append(f'<text class="axis" x="{x:.1f}" y="{height - 4:.1f}" text-anchor="middle">{index + 1}</text>')
    foot = height - UNMEASURED_ABOVE_FOOT_PX
    parts.append(f'<text class="axis" x="{left - 8}" y="{foot + 4:.1f}" text-anchor="end">unmeasured</text>')
    parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{foot:.1f}" y2="{foot:.1f}"/>')
    rejected = sum(1 for candidate, _ in points if candidate.get("verdict") not in (None, "accepted", "pending"))
    best_text = f"best so far {formats.speedup(best)}" if best else f"speedup {words.NOT_MEASURED} so far"
    summary = f"{len(points)} candidates in order of arrival, {rejected} rejected, {best_text}."
    return Markup(
        f'<svg class="chart search" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-labelledby="{escape(name)}-title {escape(name)}-desc" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{escape(name)}-title">Search so far</title><desc id="{escape(name)}-desc">{escape(summary)}</desc>'
        + "".join(parts + marks)
        + "</svg>"
    )


def _progress_value(candidate: Json) -> float | None:
    if candidate.get("verdict") != "accepted":
        return None
    for phase in ("validation", "screen"):
        summary = (candidate.get(phase) or {}).get("summary") or {}
        value = formats.finite(summary.get("geomean_speedup"))
        if value is not None and value > 0:
            return value
    return None


def _progress_mark(candidate: Json, x: float, value: float | None, axis: LogAxis, height: float) -> str:
    if value is not None:
        origin = str(candidate.get("origin") or "unknown")
        css = origin if origin in words.ORIGINS else "unknown"
        return f'<circle class="dot {css}" cx="{x:.1f}" cy="{axis.at(value):.1f}" r="5"/>'
    y = height - UNMEASURED_ABOVE_FOOT_PX
    if candidate.get("verdict") in (None, "pending"):
        return f'<circle class="waiting" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if candidate.get("verdict") == "accepted":
        return f'<rect class="waiting" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'
