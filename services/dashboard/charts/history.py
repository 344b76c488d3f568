"""First place of a board over time: a stepped line, and a dot for each who took it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from services.dashboard import formats, words
from services.dashboard.charts.axis import LogAxis, Tick

Json = Mapping[str, Any]

WIDTH_PX, HEIGHT_PX = 1040.0, 200.0
FROM_PX, TO_PX, TOP_PX, FLOOR_PX = 64.0, WIDTH_PX - 24, 14.0, HEIGHT_PX - 34
TICK_GAP_PX = 26.0
DATES = 5
_SHORTEST = timedelta(minutes=1)


@dataclass(frozen=True)
class Taken:
    """First place taken; `kind` is the origin, which chooses the color."""

    kind: str
    x_px: float
    y_px: float
    title: str


@dataclass(frozen=True)
class HistoryChart:
    """What the template `chart_history.svg` draws; all lengths in px of the view box."""

    name: str
    width_px: float
    height_px: float
    from_px: float
    to_px: float
    floor_px: float
    ticks: tuple[Tick, ...]
    dates: tuple[tuple[float, str], ...]
    taken: tuple[Taken, ...]
    description: str


def history_chart(firsts: Sequence[Json], now: datetime, *, name: str = "history") -> HistoryChart:
    """Works out the chart of who was first, oldest first, up to now."""
    held = [(formats.moment(one["since"]) or now, one) for one in firsts]
    speeds = [float(one["geomean_speedup"]) for _, one in held]
    axis = LogAxis.around(speeds, FLOOR_PX, TOP_PX)
    begin = held[0][0] if held else now
    span = max(now - begin, _SHORTEST)

    def at(when: datetime) -> float:
        share = min(max((when - begin) / span, 0.0), 1.0)
        return FROM_PX + 10 + share * (TO_PX - FROM_PX - 10)

    pattern = "%d %b %H:%M" if span < timedelta(days=3) else "%d %b %Y"
    dates = tuple(
        (at(begin + span * index / (DATES - 1)), f"{begin + span * index / (DATES - 1):{pattern}}")
        for index in range(DATES)
    )
    return HistoryChart(
        name=name,
        width_px=WIDTH_PX,
        height_px=HEIGHT_PX,
        from_px=FROM_PX,
        to_px=TO_PX,
        floor_px=FLOOR_PX,
        ticks=tuple(axis.ticks(TICK_GAP_PX)),
        dates=dates if held else (),
        taken=tuple(
            Taken(_kind(one), at(when), axis.at(speed), _title(one, speed))
            for (when, one), speed in zip(held, speeds, strict=True)
        ),
        description=_description(held, speeds),
    )


def _kind(one: Json) -> str:
    origin = str(one.get("origin"))
    return origin if origin in words.ORIGINS else "external"


def _title(one: Json, speed: float) -> str:
    who = f"{one['label']} ({words.origin(one.get('origin')).label})"
    return f"{formats.clock(one['since'])}: {who}, {formats.speedup(speed)}"


def _description(held: Sequence[tuple[datetime, Json]], speeds: Sequence[float]) -> str:
    if not held:
        return "Nobody has been first yet."
    count = "once" if len(held) == 1 else f"{len(held)} times"
    return (
        f"First place was taken {count}; from {formats.speedup(speeds[0])} to {formats.speedup(speeds[-1])}."
    )
