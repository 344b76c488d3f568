"""Charts as SVG, written by functions: a template takes a step for each attribute, and a page's charts have two thousand.

Everything here is a number of ours but for texts, and every text goes through `escape`.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from services.dashboard.charts.search import SearchChart
from services.dashboard.charts.shapes import Row, ShapeChart
from services.dashboard.formats import px


def search_svg(chart: SearchChart) -> Markup:
    """The search so far."""
    left, right, text_px = px(chart.plot_from_px), px(chart.plot_to_px), px(chart.plot_from_px - 8)
    foot, number_px = px(chart.unmeasured_px), px(chart.height_px - 4)
    parts = [_head(chart, "search", "Search so far")]
    for tick in chart.ticks:
        y = px(tick.px)
        parts.append(
            f'<line class="{"one" if tick.is_one else "grid"}" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>\n'
            f'<text class="axis" x="{text_px}" y="{px(tick.px + 4)}" text-anchor="end">{escape(tick.text)}</text>\n'
        )
    parts.append(
        f'<line class="grid" x1="{left}" x2="{right}" y1="{foot}" y2="{foot}"/>\n'
        f'<text class="axis" x="{text_px}" y="{px(chart.unmeasured_px + 4)}" text-anchor="end">unmeasured</text>\n'
    )
    if chart.best_steps:
        (x, y), *steps = chart.best_steps
        stairs = "".join(f"H{px(x)}V{px(y)}" for x, y in steps)
        parts.append(f'<path class="best" d="M{px(x)} {px(y)}{stairs}H{right}"/>\n')
    for dot in chart.dots:
        x, y = px(dot.x_px), px(dot.y_px)
        if dot.kind == "rejected":
            mark = f'<path class="cross" d="M{px(x - 4)} {px(y - 4)}l8 8m0 -8l-8 8"/>'
        elif dot.kind == "waiting":
            mark = f'<circle class="waiting" cx="{x}" cy="{y}" r="4"/>'
        elif dot.kind == "unmeasured":
            mark = f'<rect class="waiting" x="{px(x - 4)}" y="{px(y - 4)}" width="8" height="8"/>'
        else:
            mark = f'<circle class="dot {escape(dot.kind)}" cx="{x}" cy="{y}" r="5"/>'
        parts.append(f'<g class="row"><title>{escape(dot.title)}</title>\n{mark}\n</g>\n')
        if dot.has_number:
            parts.append(
                f'<text class="axis" x="{x}" y="{number_px}" text-anchor="middle">{dot.number}</text>'
            )
    return _ended(parts)


def shapes_svg(chart: ShapeChart) -> Markup:
    """Speedup at each shape."""
    parts = [
        _head(chart, "narrow" if chart.is_narrow else "wide", "Speedup over the best baseline, by shape")
    ]
    foot = px(chart.height_px - 8)
    for tick in chart.ticks:
        x = px(tick.px)
        parts.append(
            f'<line class="{"one" if tick.is_one else "grid"}" x1="{x}" x2="{x}" y1="20" y2="{foot}"/>\n'
            f'<text class="axis" x="{x}" y="14" text-anchor="middle">{escape(tick.text)}</text>\n'
        )
    parts += [
        f'<text class="group" x="0" y="{px(group.baseline_px)}">{escape(group.text)}</text>\n'
        for group in chart.groups
    ]
    for row in chart.rows:
        parts += _shape(chart, row)
    if not chart.rows:
        parts.append('<text class="empty" x="0" y="36">Speedup by shape: not measured.</text>\n')
    return _ended(parts)


def _shape(chart: ShapeChart, row: Row) -> list[str]:
    middle = px(row.middle_px)
    below, top, label, width = px(middle + 4), px(row.top_px), escape(row.label), px(chart.width_px)
    parts = [f'<g class="row"><title>{escape(row.title)}</title>\n']
    parts.append(f'<rect class="hit" x="0" y="{top}" width="{width}" height="{px(row.height_px)}"/>\n')
    if row.kind == "mean":
        parts.append(f'<line class="divider" x1="0" x2="{width}" y1="{top}" y2="{top}"/>\n')
        where = 'x="0"' if chart.is_narrow else f'x="{px(chart.label_px)}"'
        anchor = "start" if chart.is_narrow else "end"
        parts.append(f'<text class="group" {where} y="{below}" text-anchor="{anchor}">{label}</text>\n')
        if row.whisker and row.mark_px is not None:
            low, high, x = px(row.whisker.low_px), px(row.whisker.high_px), px(row.mark_px)
            corners = f"{low},{middle} {x},{px(middle - 6)} {high},{middle} {x},{px(middle + 6)}"
            parts.append(f'<polygon class="mean" points="{corners}"/>\n')
    else:
        if chart.is_narrow:
            parts.append(f'<text class="label" x="0" y="{px(row.top_px + 15)}">{label}</text>\n')
        else:
            parts.append(
                f'<text class="label" x="{px(chart.label_px)}" y="{below}" text-anchor="end">{label}</text>\n'
            )
        if row.mark_px is None:
            parts.append(
                f'<text class="empty" x="{px(chart.plot_from_px)}" y="{below}">{escape(row.value)}</text>\n'
            )
        else:
            parts += [*_whisker(row, middle), _mark(row.kind, px(row.mark_px), middle)]
    if row.mark_px is not None:
        parts.append(
            f'<text class="value" x="{px(chart.plot_to_px + 66)}" y="{below}" text-anchor="end">{escape(row.value)}</text>\n'
        )
        if row.span and not chart.is_narrow:
            parts.append(
                f'<text class="span" x="{width}" y="{below}" text-anchor="end">{escape(row.span)}</text>'
            )
    parts.append("</g>\n")
    return parts


def _whisker(row: Row, middle: float) -> list[str]:
    drawn = row.whisker
    if drawn is None:
        return []
    start = f'<line class="whisker {escape(row.kind)}"'
    low, high, above, below = px(drawn.low_px), px(drawn.high_px), px(middle - 4), px(middle + 4)
    parts = [f'{start} x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>\n']
    for x, has_cap in ((low, drawn.has_low_cap), (high, drawn.has_high_cap)):
        if has_cap:
            parts.append(f'{start} x1="{x}" x2="{x}" y1="{above}" y2="{below}"/>')
    return parts


def _mark(kind: str, x: float, y: float) -> str:
    if kind == "same":
        return f'<rect class="mark same" x="{px(x - 4)}" y="{px(y - 4)}" width="8" height="8"/>\n'
    if kind == "slower":
        corners = f"{px(x - 5.5)},{y} {px(x + 4)},{px(y - 5)} {px(x + 4)},{px(y + 5)}"
        return f'<polygon class="mark slower" points="{corners}"/>\n'
    if kind == "undecided":
        corners = f"{px(x - 5)},{y} {x},{px(y - 5)} {px(x + 5)},{y} {x},{px(y + 5)}"
        return f'<polygon class="mark undecided" points="{corners}"/>\n'
    return f'<circle class="mark faster" cx="{x}" cy="{y}" r="4.5"/>\n'


def _head(chart: SearchChart | ShapeChart, kind: str, title: str) -> str:
    name = escape(chart.name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart {kind}" viewBox="0 0 {px(chart.width_px)} {px(chart.height_px)}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc">\n<title id="{name}-title">{title}</title>\n'
        f'<desc id="{name}-desc">{escape(chart.description)}</desc>\n'
    )


def _ended(parts: list[str]) -> Markup:
    return Markup("".join(parts) + "</svg>")  # noqa: S704 - every text in it was escaped
