"""report.html: one self-contained page with the result, the measurements behind it and the sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment

from agent.bundle.evidence import BundleContents, evidence
from agent.pages import environment
from agent.performance import bad_regions, rate_map
from evaluator.counting import counted
from evaluator.verdict import ShapeResult, Summary, Verdict, by_size

_ROW_PX = 22
_LEFT_PX, _WIDTH_PX = 260, 560


def render_report(contents: BundleContents) -> str:
    """The page as text. Every value is escaped: labels, sources and messages are untrusted."""
    verdict = contents.held_out
    shapes = verdict.shapes if verdict else ()
    chosen = contents.verdict_of(contents.members[0], "validation")
    points = map_points(contents)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            contents=contents,
            evidence=evidence(contents),
            timing=verdict.timing if verdict else {},
            summary=verdict.summary if verdict else Summary(),
            environment=verdict.environment if verdict else {},
            rows=[row for row in shapes if row.timed],
            own=_own_shapes(chosen) if chosen else [],
            traffic=chosen.summary.traffic if chosen else None,
            chart=_chart(shapes),
            map=points and rate_map.draw(rate_map.rate_map(points)),
            map_points=points,
            map_sentences=bad_regions.sentences(points) if points else (),
            joules=[row for row in shapes if row.energy and row.energy.get("candidate")],
            origin_words=_ORIGIN_WORDS,
        )
    )


def map_points(contents: BundleContents) -> rate_map.Points | None:
    """All timed shapes of the delivered file if it was judged, plus those of its first member."""
    first = contents.members[0]
    found = [contents.held_out, *(contents.verdict_of(first, phase) for phase in ("validation", "screen"))]
    return rate_map.points_of(verdict for verdict in found if verdict is not None)


_ORIGIN_WORDS = {
    "human": "a hand-written kernel from Kernelwright's library; no language model was involved",
    "compiler": "PyTorch's own compiler; no language model was involved",
    "llm": "a language model",
    "policy": "a language model fine-tuned by this project",
    "external": "a person or another tool, through the API",
}


def _own_shapes(verdict: Verdict) -> list[ShapeResult]:
    """The timed shapes of the user's traffic, heaviest first; empty without known traffic."""
    weighed = [row for row in verdict.shapes if row.timed and row.weight]
    return sorted(weighed, key=lambda row: -(row.weight or 0.0))


@cache
def _environment() -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "by_size": by_size,
        "counted": counted,
        "dims": _dims,
        "figure": _figure,
        "percent": lambda share: f"{100 * share:.1f} %",
    }
    return environment(Path(__file__).parent / "templates", filters, strict=False)


def _dims(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "as given"


def _figure(value: object, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) and math.isfinite(value) else "–"


def _chart(shapes: Sequence[ShapeResult]) -> dict[str, Any] | None:
    """Positions for a dot-and-interval chart of the speedup at each held-out shape, on a log axis."""
    rows = [(row, row.speedup, row.ci95) for row in shapes if row.timed and row.speedup]
    if not rows:
        return None
    values = [value for _, speedup, ci95 in rows for value in (speedup, *(ci95 or ())) if value > 0]
    low, high = min([*values, 0.9]) * 0.95, max([*values, 1.1]) * 1.05

    def at(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low)
        return round(_LEFT_PX + share * (_WIDTH_PX - 20), 1)

    steps = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64]
    return {
        "width": _LEFT_PX + _WIDTH_PX,
        "height": _ROW_PX * len(rows) + 34,
        "bottom": _ROW_PX * len(rows) + 6,
        "one": at(1.0),
        "ticks": [{"x": at(step), "text": f"{step:g}x"} for step in steps if low <= step <= high],
        "rows": [
            {
                "y": _ROW_PX * index + 16,
                "text": _dims(row.dims),
                "x": at(speedup),
                "low": at(ci95[0] if ci95 else speedup),
                "high": at(ci95[1] if ci95 else speedup),
                "decision": row.decision or "undecided",
                "label_x": _LEFT_PX - 10,
            }
            for index, (row, speedup, ci95) in enumerate(rows)
        ],
    }
