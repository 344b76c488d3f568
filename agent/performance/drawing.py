"""Draws the performance map as SVG, for a page whose style sheet colors the text or as a standalone file."""

from __future__ import annotations

from markupsafe import Markup, escape

from agent.performance.rate_map import Cell, Label, Panel, RateMap

_STYLE = """\
<style>
text { font: 12px system-ui, sans-serif; fill: #1b1f1e; } .axis { fill: #565d5b; } .group { font-weight: 650; }
.cell { font-size: 11px; } .cell.light { fill: #ffffff; } .frame { fill: none; stroke: #b9b9ae; } .paper { fill: #ffffff; }
</style>
"""


def draw(chart: RateMap, *, as_file: bool = False) -> Markup:
    """Draw the map; every text is escaped, since users choose the names of dimensions.

    Uses functions because a template takes a step for each attribute, and a page with this map has hundreds.

    Args:
        chart: from :func:`agent.performance.rate_map.rate_map`.
        as_file: whether to include a style sheet.
    """
    name, width, height = escape(chart.name), _px(chart.width_px), _px(chart.height_px)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="chart map" viewBox="0 0 {width} {height}" ']
    parts.append(f'role="img" aria-labelledby="{name}-title {name}-desc">\n')
    parts.append(f'<title id="{name}-title">Work per second by size, reference beside optimized</title>\n')
    parts.append(f'<desc id="{name}-desc">{escape(chart.description)}</desc>\n')
    if as_file:
        parts.append(f'{_STYLE}<rect class="paper" x="0" y="0" width="{width}" height="{height}"/>\n')
    for panel in chart.panels:
        parts += _panel(chart, panel)
    parts += _legend(chart)
    return Markup("".join(parts) + "</svg>")  # noqa: S704 - every text in it was escaped


def _panel(chart: RateMap, panel: Panel) -> list[str]:
    left = _px(panel.left_px)
    parts = [f'<text class="group" x="{left}" y="34">{escape(panel.heading)}</text>\n']
    parts += [_cell(chart, cell) for cell in panel.cells]
    size = f'width="{_px(chart.panel_width_px)}" height="{_px(chart.plot_height_px)}"'
    parts.append(f'<rect class="frame" x="{left}" y="46" {size} fill="none"/>\n')
    parts += [_label(label, "middle") for label in panel.columns]
    if chart.up:
        parts += [_label(label, "end") for label in panel.rows]
        parts.append(_axis(panel.left_px - 6, 40, "end", chart.up))
    middle_px = panel.left_px + chart.panel_width_px / 2
    parts.append(_axis(middle_px, chart.height_px - 6, "middle", f"{chart.across} (from)"))
    return parts


def _cell(chart: RateMap, cell: Cell) -> str:
    text = ""
    if cell.text:
        x, y = _px(cell.x_px + chart.cell_width_px / 2), _px(cell.y_px + chart.cell_height_px / 2 + 4)
        css = "light" if cell.is_dark else "dark"
        text = f'<text class="cell {css}" x="{x}" y="{y}" text-anchor="middle">{escape(cell.text)}</text>\n'
    return (
        f'<g class="row"><title>{escape(cell.title)}</title>\n'
        f'<rect x="{_px(cell.x_px)}" y="{_px(cell.y_px)}" width="{_px(chart.cell_width_px)}" '
        f'height="{_px(chart.cell_height_px)}" fill="{cell.color}"/>\n{text}</g>\n'
    )


def _legend(chart: RateMap) -> list[str]:
    right_px, count = chart.width_px - 8, len(chart.legend)
    parts = [f'<text class="axis" x="{_px(chart.panels[0].left_px)}" y="14">{escape(chart.unit)}</text>\n']
    parts.append(_axis(right_px - 16 * count - 44, 14, "end", "less"))
    parts += [
        f'<rect x="{_px(right_px - 16 * (count - number) - 38)}" y="4" width="16" height="12" fill="{color}"/>\n'
        for number, color in enumerate(chart.legend)
    ]
    parts.append(_axis(right_px, 14, "end", "more"))
    return parts


def _label(label: Label, anchor: str) -> str:
    return _axis(label.x_px, label.y_px, anchor, label.text)


def _axis(x_px: float, y_px: float, anchor: str, text: str) -> str:
    return (
        f'<text class="axis" x="{_px(x_px)}" y="{_px(y_px)}" text-anchor="{anchor}">{escape(text)}</text>\n'
    )


def _px(value: float) -> float:
    return round(value, 1)
