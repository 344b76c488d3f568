"""The page about an import: which tasks were registered, which were refused and why, and what of their sizes can vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent import pages
from evaluator.shapes.inference.declaring import told

_STATES = {
    "sound": "registered",
    "marked": "registered with remarks",
    "refused": "refused",
    "unknown": "could not be looked at",
}


def report_page(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], device: str) -> str:
    """One self-contained page. Every value is escaped: files and what they say are anybody's."""
    template = pages.environment(Path(__file__).parent / "templates").get_template("report.html")
    return template.render(rows=rows, counts=counts, device=device, states=_STATES, told=told)
