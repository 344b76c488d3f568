"""Throughput map over two dimensions, reference beside optimized; shows why a single size misleads.

Uses the timed rows of verdicts. Work is the number of grid points spanned by the task's sizes (their product), since a
verdict does not record operation counts: exact for row kernels and matrix products, a convention elsewhere. A cell covers one
octave, or less with many timed shapes; its rate is the geometric mean over its shapes. Both panels share one color scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from agent.pages import environment
from evaluator.counting import counted
from evaluator.verdict import ShapeResult, Verdict

#: From low to high; the numbers in the cells give the same information without color.
COLORS = ("#f2f5f3", "#d5e6dd", "#aed3c6", "#7fbcb2", "#50a09f", "#2c8089", "#155f70", "#0a3f53")
#: From this level on, numbers are drawn in a light color.
_DARK_FROM = 4
_MOST_CELLS = 16
#: Number of shapes from which finer cells are drawn.
_FINER_FROM = 150
WIDTH_PX, LEFT_PX, GAP_PX, TOP_PX, BOTTOM_PX = 1040.0, 70.0, 56.0, 46.0, 40.0
_HIGHEST_CELL_PX = 34.0


@dataclass(frozen=True)
class Point:
    """One timed shape.

    Attributes:
        sizes: its varying integer dimensions, in the task's order.
        dims: all dimensions.
        work: number of grid points.
        baseline_us: time of the fastest baseline.
        candidate_us: time of the delivered module.
        decision: ``faster``, ``same``, ``slower`` or ``undecided``.
    """

    sizes: tuple[int, ...]
    dims: Mapping[str, Any]
    work: float
    baseline_us: float
    candidate_us: float
    decision: str

    def rate(self, *, optimized: bool) -> float:
        """Points per second."""
        return self.work / (self.candidate_us if optimized else self.baseline_us) * 1e6


@dataclass(frozen=True)
class Points:
    """Comparable shapes: all have the same values of their non-size dimensions.

    Attributes:
        names: names of the varying integer dimensions.
        points: one per shape.
        choices: the fixed values of the non-size dimensions, in words; empty if there are none.
        left_out: number of rows left out, such as those with other choices.
    """

    names: tuple[str, ...]
    points: tuple[Point, ...]
    choices: str
    left_out: int


def points_of(verdicts: Iterable[Verdict]) -> Points | None:
    """The timed shapes of the verdicts; the first verdict with a row for a shape wins. None if no size varies."""
    rows: dict[tuple[tuple[str, str], ...], ShapeResult] = {}
    for verdict in verdicts:
        for row in verdict.shapes:
            if _measured(row):
                rows.setdefault(tuple((str(name), repr(value)) for name, value in row.dims.items()), row)
    if not rows:
        return None
    choices = Counter(_choices(row.dims) for row in rows.values())
    wanted = choices.most_common(1)[0][0]
    kept = [row for row in rows.values() if _choices(row.dims) == wanted]
    integers = [name for name, value in kept[0].dims.items() if _is_size(value)]
    kept = [row for row in kept if all(_is_size(row.dims.get(name)) for name in integers)]
    varying = tuple(name for name in integers if len({row.dims[name] for row in kept}) > 1)
    if not varying:
        return None
    return Points(
        names=varying,
        points=tuple(_point(row, varying) for row in kept),
        choices=wanted,
        left_out=len(rows) - len(kept),
    )


def rate_map(found: Points, *, name: str = "rates") -> SimpleNamespace:
    """The map's geometry in px of the view box, for `draw`.

    Args:
        found: from :func:`points_of`.
        name: prefix of element ids, unique on the page.
    """
    across, up = _axes(found)
    step = 0.5 if len(found.points) >= _FINER_FROM else 1.0
    columns, lines = _Axis.over(found, across, step), _Axis.over(found, up, step)
    rates = [
        rate for point in found.points for rate in (point.rate(optimized=False), point.rate(optimized=True))
    ]
    scale = _Scale(min(rates), max(rates))
    panel_px = (WIDTH_PX - 2 * LEFT_PX - GAP_PX) / 2
    cell_px = panel_px / columns.count
    height_px = min(cell_px, _HIGHEST_CELL_PX)
    plot_px = height_px * lines.count
    panels = []
    for index, heading in enumerate(("best baseline of the reference", "optimized")):
        left = LEFT_PX + index * (panel_px + GAP_PX + LEFT_PX / 2)
        cells = []
        for (column, line), inside in sorted(_cells(found, columns, lines).items()):
            mean = math.exp(sum(math.log(point.rate(optimized=index == 1)) for point in inside) / len(inside))
            level = scale.level(mean)
            cells.append(
                SimpleNamespace(
                    x_px=left + column * cell_px,
                    y_px=TOP_PX + (lines.count - 1 - line) * height_px,
                    color=COLORS[level],
                    shade="light" if level >= _DARK_FROM else "dark",
                    text=scale.short(mean) if cell_px >= 24 else "",
                    title=_title(inside, heading, _said(mean)),
                )
            )
        foot_px = TOP_PX + plot_px + 14
        panels.append(
            SimpleNamespace(
                heading=heading,
                left_px=left,
                cells=cells,
                columns=[
                    (left + (number + 0.5) * cell_px, foot_px, text)
                    for number, text in columns.labels(40 / cell_px)
                ],
                rows=[
                    (left - 6, TOP_PX + (lines.count - 0.5 - number) * height_px + 4, text)
                    for number, text in lines.labels(14 / height_px)
                ],
            )
        )
    return SimpleNamespace(
        name=name,
        width_px=WIDTH_PX,
        height_px=TOP_PX + plot_px + BOTTOM_PX,
        cell_width_px=cell_px,
        cell_height_px=height_px,
        panel_width_px=panel_px,
        plot_height_px=plot_px,
        panels=panels,
        across=across,
        up=up if up != across else "",
        unit=f"{scale.prefix} points of {' × '.join(found.names)} per second",
        legend=COLORS,
        description=(
            f"{counted(len(found.points), 'shape')} over {across}{f' and {up}' if up != across else ''}; reference "
            f"{_said(min(rates[::2]))} to {_said(max(rates[::2]))}, optimized {_said(min(rates[1::2]))} to "
            f"{_said(max(rates[1::2]))} points per second."
        ),
    )


def draw(chart: SimpleNamespace, *, as_file: bool = False) -> Markup:
    """A map as SVG, for a page whose style sheet colors the text, or as a file with its own styles."""
    svg = _template().render(chart=chart, as_file=as_file)
    return Markup(svg)  # noqa: S704 - the template escapes


@cache
def _template() -> Template:
    return environment(Path(__file__).parent, {"px": lambda length: round(length, 1)}).get_template(
        "map.svg.j2"
    )


@dataclass(frozen=True)
class _Axis:
    """A dimension divided into cells of a fixed number of octaves."""

    index: int
    first: int
    count: int
    step: float

    @classmethod
    def over(cls, found: Points, name: str, step: float) -> _Axis:
        index = found.names.index(name)
        sizes = [math.log2(max(point.sizes[index], 1)) for point in found.points]
        while math.floor(max(sizes) / step) - math.floor(min(sizes) / step) >= _MOST_CELLS:
            step *= 2
        first = math.floor(min(sizes) / step)
        return cls(index, first, math.floor(max(sizes) / step) - first + 1, step)

    def cell(self, point: Point) -> int:
        return math.floor(math.log2(max(point.sizes[self.index], 1)) / self.step) - self.first

    def labels(self, every: float) -> list[tuple[int, str]]:
        """Cell numbers and their lower bounds, thinned so that labels do not overlap."""
        stride = max(1, math.ceil(every))
        return [
            (number, f"{2 ** ((self.first + number) * self.step):.0f}")
            for number in range(0, self.count, stride)
        ]


@dataclass(frozen=True)
class _Scale:
    """A logarithmic color scale with the unit of its numbers."""

    low: float
    high: float

    @property
    def _unit(self) -> tuple[float, str]:
        return _unit_of(self.high)

    @property
    def prefix(self) -> str:
        return self._unit[1]

    def level(self, rate: float) -> int:
        if self.high <= self.low * 1.001:
            return len(COLORS) // 2
        share = math.log(rate / self.low) / math.log(self.high / self.low)
        return min(int(share * len(COLORS)), len(COLORS) - 1)

    def short(self, rate: float) -> str:
        """The rate in at most four characters."""
        number = rate / self._unit[0]
        if number >= 9.95:
            return f"{number:.0f}"
        return (
            f"{number:.1f}" if number >= 0.095 else f"{number:.2f}".lstrip("0") if number >= 0.005 else "~0"
        )


def _unit_of(rate: float) -> tuple[float, str]:
    for factor, prefix in ((1e12, "10¹²"), (1e9, "10⁹"), (1e6, "10⁶"), (1e3, "10³")):
        if rate >= 0.9995 * factor:
            return factor, prefix
    return 1.0, ""


def _said(rate: float) -> str:
    """A rate with its own unit, such as ``1.94 × 10⁹``."""
    factor, prefix = _unit_of(rate)
    return f"{rate / factor:.3g} × {prefix}" if prefix else f"{rate:.3g}"


def _cells(found: Points, columns: _Axis, lines: _Axis) -> dict[tuple[int, int], list[Point]]:
    cells: dict[tuple[int, int], list[Point]] = {}
    for point in found.points:
        line = 0 if lines.index == columns.index else lines.cell(point)
        cells.setdefault((columns.cell(point), line), []).append(point)
    return cells


def _axes(found: Points) -> tuple[str, str]:
    """The two dimensions that vary most: the later one in the task's order across, the other up; a single one twice."""

    def octaves(index: int) -> float:
        sizes = [max(point.sizes[index], 1) for point in found.points]
        return math.log2(max(sizes) / min(sizes))

    widest = sorted(sorted(range(len(found.names)), key=octaves, reverse=True)[:2])
    return found.names[widest[-1]], found.names[widest[0]]


def _title(inside: Sequence[Point], heading: str, rate: str) -> str:
    shapes = "; ".join(_words(point.dims) for point in inside[:4])
    more = f" and {len(inside) - 4} more" if len(inside) > 4 else ""
    return f"{heading}: {rate} points per second at {shapes}{more}"


def _words(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dims.items())


def _point(row: ShapeResult, varying: tuple[str, ...]) -> Point:
    sizes = tuple(int(row.dims[name]) for name in varying)
    return Point(
        sizes=sizes,
        dims=row.dims,
        work=float(math.prod(max(size, 1) for size in sizes)),
        baseline_us=row.baseline_us or 0.0,
        candidate_us=row.candidate_us or 0.0,
        decision=row.decision or "undecided",
    )


def _measured(row: ShapeResult) -> bool:
    times = (row.baseline_us, row.candidate_us)
    return row.timed and all(
        isinstance(time, (int, float)) and not isinstance(time, bool) and math.isfinite(time) and time > 0
        for time in times
    )


def _choices(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dims.items() if not _is_size(value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
