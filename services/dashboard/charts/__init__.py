"""Charts drawn on the server as SVG: no script, no style attribute, readable by screen readers.

Python works out the geometry, `svg` (or a template) draws it, and every text is escaped there.
Colors come from the style sheet through class names, so that dark mode and print work; every mark
also differs in form, so that color is never the only carrier.
"""

from __future__ import annotations

from services.dashboard.charts.history import HistoryChart, history_chart
from services.dashboard.charts.search import SearchChart, search_chart
from services.dashboard.charts.shapes import ShapeChart, shape_chart
from services.dashboard.charts.svg import search_svg, shapes_svg

__all__ = [
    "HistoryChart",
    "SearchChart",
    "ShapeChart",
    "history_chart",
    "search_chart",
    "search_svg",
    "shape_chart",
    "shapes_svg",
]
