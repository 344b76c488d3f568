"""Formats numbers and times for the pages. A missing value is named as such, never shown as 0."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from services.dashboard.words import NOT_MEASURED


def finite(value: object) -> float | None:
    """The value as a float, or ``None`` if it is missing, not a number or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def speedup(value: object) -> str:
    """``1.62×``, or "not measured"."""
    number = finite(value)
    if number is None:
        return NOT_MEASURED
    return f"{number:.2f}×" if number < 100 else f"{number:.0f}×"


def interval(bounds: object) -> str:
    """``1.58 to 1.66`` from a pair, or "not measured"."""
    pair = interval_bounds(bounds)
    return NOT_MEASURED if pair is None else f"{pair[0]:.2f} to {pair[1]:.2f}"


def interval_bounds(bounds: object) -> tuple[float, float] | None:
    """The two bounds of a 95 % interval in ascending order, or ``None`` if either is missing."""
    if not isinstance(bounds, Sequence) or isinstance(bounds, str | bytes) or len(bounds) != 2:
        return None
    low, high = finite(bounds[0]), finite(bounds[1])
    if low is None or high is None:
        return None
    return (low, high) if low <= high else (high, low)


def microseconds(value: object) -> str:
    """A time in microseconds, with fewer decimals for larger numbers."""
    number = finite(value)
    if number is None:
        return NOT_MEASURED
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def seconds(value: object) -> str:
    """A duration given in seconds: ``0.8 s``, ``42 s``, ``2 min 05 s``, ``1 h 12 min``."""
    number = finite(value)
    if number is None or number < 0:
        return NOT_MEASURED
    if number < 10:
        return f"{number:.1f} s"
    whole = round(number)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def offset(value_s: float) -> str:
    """Seconds since the start as ``+1:05.3``, for a column of times."""
    minutes, rest = divmod(max(value_s, 0.0), 60)
    return f"+{int(minutes)}:{rest:04.1f}"


def dollars(value: object) -> str:
    """An amount of US dollars."""
    number = finite(value)
    if number is None:
        return NOT_MEASURED
    return f"${number:.2f}" if number == 0 or number >= 0.01 else f"${number:.4f}"


def _figure(pattern: str, scale: float = 1.0) -> Callable[[object], str]:
    """Make a function that formats a number by a pattern, or returns "not measured"."""

    def printed(value: object) -> str:
        number = finite(value)
        return NOT_MEASURED if number is None else pattern.format(scale * number)

    return printed


count = _figure("{:,.0f}")
#: A share between 0 and 1.
percent = _figure("{:.0f} %", 100)
ratio = _figure("{:.3f}")
#: The given call weight of a shape: ``1,200`` or ``0.25``.
weight = _figure("{:,.6g}")


def counted(value: object, noun: str) -> str:
    """A number with its noun: ``1 line``, ``1,200 lines``."""
    return f"{count(value)} {noun if value == 1 else f'{noun}s'}"


def moment(value: object) -> datetime | None:
    """A stored timestamp (ISO text or datetime) in UTC; ``None`` if missing or invalid."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def clock(value: object) -> str:
    """``2026-03-01 14:05 UTC``, or "not yet"."""
    when = moment(value)
    return "not yet" if when is None else f"{when:%Y-%m-%d %H:%M} UTC"


def clock_short(value: object) -> str:
    """``01 Mar 14:05``, the short form for tables, or "not yet"."""
    when = moment(value)
    return "not yet" if when is None else f"{when:%d %b %H:%M}"


def elapsed_s(start: object, end: object) -> float | None:
    """Seconds between two timestamps; a missing end means now."""
    begun = moment(start)
    if begun is None:
        return None
    return ((moment(end) or datetime.now(UTC)) - begun).total_seconds()


def dims(values: object) -> str:
    """``rows 512 · cols 1024 · float32``: the dims of one shape, in the task's order."""
    if not isinstance(values, Mapping) or not values:
        return "default shape"
    return " · ".join(_dim(str(name), value) for name, value in values.items())


def _dim(name: str, value: Any) -> str:
    return str(value) if name == "dtype" else f"{name} {value}"


def breakable(name: object) -> Markup:
    """Allow line breaks after underscores, dots and slashes, to keep long names from widening the page."""
    return Markup("<wbr>").join(part for part in re.split(r"(?<=[_./])", str(name)) if part)


def px(value: float) -> float:
    """A length for SVG, rounded to a tenth to keep pages small."""
    return round(value, 1)
