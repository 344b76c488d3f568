"""A chart as a file of its own: the page's markup with the part of the style sheet that colors it."""

from __future__ import annotations

from functools import cache

from services.dashboard.charts import HistoryChart
from services.dashboard.rendering import environment, static_file

#: Nothing in the file may load or run anything; its style sheet is within it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_COLORS = (":root {", "* { box-sizing")
_CHARTS = ("/* charts */", "/* code */")


def history_file(chart: HistoryChart) -> str:
    """First place over time as an SVG document."""
    return standalone(environment().get_template("chart_history.svg").render(chart=chart))


def standalone(markup: str) -> str:
    """Markup of one chart with a style sheet of its own."""
    start = markup.index("<svg")
    end = markup.index(">", start) + 1  # attributes are escaped, so the first one ends the tag
    head = markup[start:end]
    if "xmlns=" not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}\n<style>\n{_style()}</style>{markup[end:]}"


@cache
def _style() -> str:
    sheet = (static_file("style.css") or b"").decode()
    parts = [sheet[sheet.index(begin) : sheet.index(end)] for begin, end in (_COLORS, _CHARTS)]
    return "".join(parts) + "svg { background: var(--paper); }\n"
