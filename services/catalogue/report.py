"""The page about an import: which tasks were registered, which were refused and why, and what of their sizes can vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluator.shapes.inference.declaring import told

_STATES = {
    "sound": "registered",
    "marked": "registered with remarks",
    "refused": "refused",
    "unknown": "could not be looked at",
}


def report_page(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], device: str) -> str:
    """One self-contained page. Every value is escaped: files and what they say are anybody's."""
    return (
        _environment()
        .get_template("report.html")
        .render(rows=rows, counts=counts, device=device, states=_STATES, told=told)
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
