"""The performance map as SVG: for a page, where its style sheet colors the text, or as a file of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent.performance.rate_map import RateMap

_TEMPLATES = Path(__file__).parent / "templates"


def draw(chart: RateMap, *, as_file: bool = False) -> Markup:
    """The picture; every text in it is escaped, since names of dimensions come from users.

    Args:
        chart: from :func:`agent.performance.rate_map.rate_map`.
        as_file: with a style sheet of its own.
    """
    return Markup(_environment().get_template("rate_map.svg").render(chart=chart, as_file=as_file))  # noqa: S704 - autoescaped


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["px"] = lambda value: round(value, 1)
    return environment
