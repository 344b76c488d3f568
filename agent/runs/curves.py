"""Renders curves over steps as SVG, so pages need no script. The page sets colors through class names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from agent.runs.files import Step

WIDTH_PX, HEIGHT_PX = 520.0, 190.0
_LEFT, _RIGHT, _TOP, _FLOOR = 58.0, 12.0, 12.0, 26.0
#: Maximum points per curve; beyond it, each stretch of neighbors is drawn as its lowest and highest value.
_MOST_POINTS = 240
_TICKS = 4
#: The curves: figure name in the files, title, and whether the axis must include 0.
CURVES = (
    ("loss", "Training loss", False),
    ("reward_mean", "Mean score of completions", False),
    ("speedup_mean", "Mean speedup of all samples, failures as 0", True),
    ("accepted_share", "Share of judged completions that were accepted", True),
    ("entropy", "Entropy, nats per token", True),
    ("hacks", "Caught completions per step", True),
    ("judged", "Candidates judged per step", True),
    ("missing", "Completions without a reward", True),
    ("idle_share", "Share of a step spent waiting for rewards", True),
    ("step_s", "Seconds per step", True),
    ("peak_memory_gib", "Most GPU memory in use at once, GiB", True),
)


@dataclass(frozen=True)
class Curve:
    """A rendered curve: figure name, title, markup that is safe to embed in a page, and the last value."""

    name: str
    title: str
    svg: str
    last: float


def curves(steps: Sequence[Step]) -> list[Curve]:
    """The curves of all figures in the run."""
    found = []
    for name, title, from_zero in CURVES:
        points = [(one.number, value) for one in steps if (value := one.figures.get(name)) is not None]
        if points:
            found.append(Curve(name, title, curve_svg(name, title, points, from_zero), points[-1][1]))
    return found


def curve_svg(name: str, title: str, points: Sequence[tuple[int, float]], from_zero: bool) -> str:
    """Render one curve.

    Args:
        name: for ids in the page; letters and underscores.
        title: text for readers.
        points: (step, value), with increasing steps and finite values; at least one.
        from_zero: whether the axis starts at 0 or below.
    """
    values = [value for _, value in points]
    low, high = min(values), max(values)
    low = min(low, 0.0) if from_zero else low
    ticks = ticks_of(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    first, last = points[0][0], points[-1][0]

    def x_of(step: float) -> float:
        share = (step - first) / (last - first) if last > first else 0.5
        return round(_LEFT + share * (WIDTH_PX - _LEFT - _RIGHT), 1)

    def y_of(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return round(HEIGHT_PX - _FLOOR - share * (HEIGHT_PX - _FLOOR - _TOP), 1)

    drawn = thinned(points)
    said = f"{title}: from {shown(values[0])} at step {first} to {shown(values[-1])} at step {last}; lowest {shown(min(values))}, highest {shown(max(values))}."
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart curve" viewBox="0 0 {WIDTH_PX:g} {HEIGHT_PX:g}" role="img" '
            f"aria-labelledby={quoteattr(f'{name}-title {name}-desc')}>"
        ),
        f"<title id={quoteattr(f'{name}-title')}>{escape(title)}</title>",
        f"<desc id={quoteattr(f'{name}-desc')}>{escape(said)}</desc>",
    ]
    for tick in ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{_LEFT:g}" x2="{WIDTH_PX - _RIGHT:g}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="axis" x="{_LEFT - 8:g}" y="{y + 4}" text-anchor="end">{shown(tick)}</text>'
        )
    foot = HEIGHT_PX - 6
    parts.append(f'<text class="axis" x="{_LEFT:g}" y="{foot:g}">step {first}</text>')
    if last > first:
        parts.append(
            f'<text class="axis" x="{WIDTH_PX - _RIGHT:g}" y="{foot:g}" text-anchor="end">{last}</text>'
        )
        path = "".join(
            f"{'L' if place else 'M'}{x_of(step)} {y_of(value)}" for place, (step, value) in enumerate(drawn)
        )
        parts.append(f'<path class="best" d="{path}"/>')
    parts.append(f'<circle class="dot llm" cx="{x_of(last)}" cy="{y_of(values[-1])}" r="4"/></svg>')
    return "\n".join(parts)


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `_MOST_POINTS` points: the lowest and highest value of each stretch of steps, in order."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretch = math.ceil(2 * len(points) / _MOST_POINTS)
    found: list[tuple[int, float]] = []
    for begin in range(0, len(points), stretch):
        part = points[begin : begin + stretch]
        ends = {min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])}
        found += sorted(ends)
    return found


def ticks_of(low: float, high: float) -> list[float]:
    """About four round values that span an interval."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(begin, end + 1)]


def shown(value: float) -> str:
    """A number in short form."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:.4g}"
