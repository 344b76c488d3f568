"""A chart as a file of its own: the page's markup with the part of the style sheet that colors it."""

from __future__ import annotations

from functools import cache

from services.dashboard.rendering import static_file

#: Nothing in the file may load or run anything; its style sheet is within it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_COLORS = (":root {", "* { box-sizing")
_CHARTS = ("/* charts */", "/* code */")


def standalone(markup: str) -> str:
    """Markup of one chart with a style sheet of its own."""
    start = markup.index("<svg")
    end = markup.index(">", start) + 1  # attributes are escaped, so the first one ends the tag
    return f"{markup[start:end]}\n<style>\n{_style()}</style>{markup[end:]}"


@cache
def _style() -> str:
    sheet = (static_file("style.css") or b"").decode()
    parts = [sheet[sheet.index(begin) : sheet.index(end)] for begin, end in (_COLORS, _CHARTS)]
    return "".join(parts) + "svg { background: var(--paper); }\n"
