"""The search so far: each candidate in order of arrival, the best so far as a stepped line, rejections at the foot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard import formats, ranking, words
from services.dashboard.charts.axis import LogAxis, Tick

Json = Mapping[str, Any]

WIDTH_PX, HEIGHT_PX = 1040.0, 200.0
PLOT_FROM_PX, PLOT_TO_PX, TOP_PX, FLOOR_PX = 84.0, WIDTH_PX - 12, 14.0, HEIGHT_PX - 56
UNMEASURED_PX = HEIGHT_PX - 30
TICK_GAP_PX, NUMBER_GAP_PX = 26.0, 22.0


@dataclass(frozen=True)
class Dot:
    """One candidate. `kind` is its origin when measured, else ``rejected``, ``waiting`` or ``unmeasured``."""

    kind: str
    number: int
    has_number: bool
    x_px: float
    y_px: float
    title: str


@dataclass(frozen=True)
class SearchChart:
    """What `svg.search_svg` draws; all lengths in px of the view box."""

    name: str
    width_px: float
    height_px: float
    plot_from_px: float
    plot_to_px: float
    unmeasured_px: float
    ticks: tuple[Tick, ...]
    dots: tuple[Dot, ...]
    best_steps: tuple[tuple[float, float], ...]
    description: str


def search_chart(candidates: Sequence[Json], *, name: str = "search") -> SearchChart:
    """Works out the chart of a job's candidates, in order of arrival."""
    values = [_speedup(candidate) for candidate in candidates]
    axis = LogAxis.around([value for value in values if value is not None], FLOOR_PX, TOP_PX)
    step = (PLOT_TO_PX - PLOT_FROM_PX) / max(len(candidates), 1)
    number_every = max(1, math.ceil(NUMBER_GAP_PX / step))
    dots: list[Dot] = []
    steps: list[tuple[float, float]] = []
    best = 0.0
    for index, (candidate, value) in enumerate(zip(candidates, values, strict=True)):
        x = PLOT_FROM_PX + step * (index + 0.5)
        y = axis.at(value) if value is not None else UNMEASURED_PX
        if value is not None and value > best:
            best = value
            steps.append((x, y))
        dots.append(
            Dot(
                _kind(candidate, value),
                index + 1,
                index % number_every == 0,
                x,
                y,
                _title(index, candidate, value),
            )
        )
    rejected = sum(1 for dot in dots if dot.kind == "rejected")
    reached = f"best so far {formats.speedup(best)}" if best else f"speedup {words.NOT_MEASURED} so far"
    return SearchChart(
        name=name,
        width_px=WIDTH_PX,
        height_px=HEIGHT_PX,
        plot_from_px=PLOT_FROM_PX,
        plot_to_px=PLOT_TO_PX,
        unmeasured_px=UNMEASURED_PX,
        ticks=tuple(axis.ticks(TICK_GAP_PX)),
        dots=tuple(dots),
        best_steps=tuple(steps),
        description=f"{len(dots)} candidates in order of arrival, {rejected} rejected, {reached}.",
    )


def _speedup(candidate: Json) -> float | None:
    if candidate.get("verdict") != "accepted":
        return None
    for phase in ("validation", "screen"):
        summary = (candidate.get(phase) or {}).get("summary") or {}
        value = ranking.chosen_by(summary)
        if value is not None and value > 0:
            return value
    return None


def _kind(candidate: Json, value: float | None) -> str:
    word = candidate.get("verdict")
    if word in (None, "pending"):
        return "waiting"
    if word != "accepted":
        return "rejected"
    if value is None:
        return "unmeasured"
    origin = str(candidate.get("origin"))
    return origin if origin in words.ORIGINS else "external"


def _title(index: int, candidate: Json, value: float | None) -> str:
    label = str(candidate.get("label") or str(candidate.get("sha256") or "")[:12])
    said = f"{index + 1}. {label} ({words.origin(candidate.get('origin')).label}): "
    said += words.verdict(candidate.get("verdict")).label
    return f"{said}, {formats.speedup(value)}" if value is not None else said
