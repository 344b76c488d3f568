"""Cost of calls in joules and dollars: picks a member among tied times and the cheapest GPU for a module's traffic.

The user supplies all prices. A rented GPU's hourly price already includes electricity; for an owned GPU, give the price of a
kilowatt-hour in addition or instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.verdict import ShapeResult, Verdict

#: Members within this share of the fastest tie; their energy decides.
TIE = 0.02
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars.

    Attributes:
        per_hour: hourly price of each device, by its driver name.
        per_kwh: price of electricity; None if it is not paid separately.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)
    per_kwh: float | None = None

    def call_usd(self, device: str, call_us: float, joules: float | None) -> float | None:
        """Cost of a call; None if neither price applies, or if electricity has a price and the joules are unknown."""
        hourly = self.per_hour.get(device)
        if self.per_kwh is not None and joules is None:
            return None
        if hourly is None and self.per_kwh is None:
            return None
        time_usd = (hourly or 0.0) * call_us / 3.6e9
        return time_usd + ((self.per_kwh or 0.0) * joules / _JOULES_PER_KWH if joules is not None else 0.0)


def energy_aware(times_us: Mapping[str, float], joules: Mapping[str, float], *, within: float = TIE) -> str:
    """The member to run: the one with the lowest energy among those that tie with the fastest.

    Args:
        times_us: time of each member.
        joules: energy of the measured members; if the fastest was not measured, it is chosen, since no saving can be shown.
        within: share by which a member may be slower and still tie.
    """
    fastest = min(times_us, key=lambda name: times_us[name])
    if fastest not in joules:
        return fastest
    tied = [
        name for name, time in times_us.items() if time <= (1 + within) * times_us[fastest] and name in joules
    ]
    return min(tied, key=lambda name: (joules[name], times_us[name]))


@dataclass(frozen=True)
class Serving:
    """Cost and speed of serving the traffic on one device.

    Attributes:
        device: its name.
        optimized: whether this is the delivered module; otherwise the reference's best baseline.
        call_us: mean time per call over the traffic.
        joules: mean joules per call over the traffic; None if not measured at every shape.
        usd_per_million: dollars per million calls; None without an applicable price.
        shapes: number of shapes.
        is_cheapest: whether this is the cheapest of all lines with a price.
    """

    device: str
    optimized: bool
    call_us: float
    joules: float | None
    usd_per_million: float | None
    shapes: int
    is_cheapest: bool = False

    @property
    def calls_per_dollar(self) -> float | None:
        """Calls per dollar; None without an applicable price."""
        return 1e6 / self.usd_per_million if self.usd_per_million else None


def serving(verdicts: Sequence[Verdict], prices: Prices) -> list[Serving]:
    """One line for the reference and one for the delivered module per measured device, cheapest first.

    Only shapes timed on every device count, so all devices are compared on the same shapes. Shapes are weighted by traffic,
    or equally without known traffic.

    Args:
        verdicts: verdicts on one module, each from one device; the first one per device counts.
        prices: the user's prices.
    """
    rows: dict[str, dict[tuple[tuple[str, str], ...], ShapeResult]] = {}
    for verdict in verdicts:
        device = str(verdict.environment.get("device_name") or "")
        timed = {_key(row.dims): row for row in verdict.shapes if _is_timed(row)}
        if device and timed:
            rows.setdefault(device, timed)
    if not rows:
        return []
    shared = set.intersection(*(set(timed) for timed in rows.values()))
    if not shared:
        return []
    first = next(iter(rows.values()))
    weights = {key: first[key].weight or 0.0 for key in shared}
    if not any(weights.values()):
        weights = dict.fromkeys(shared, 1.0)
    lines = [
        _line(device, [(timed[key], weights[key]) for key in shared], prices, optimized=optimized)
        for device, timed in rows.items()
        for optimized in (False, True)
    ]
    lines.sort(key=lambda line: (line.usd_per_million is None, line.usd_per_million or 0.0, line.call_us))
    if lines[0].usd_per_million is not None:
        lines[0] = Serving(**{**vars(lines[0]), "is_cheapest": True})
    return lines


def _line(device: str, rows: list[tuple[ShapeResult, float]], prices: Prices, *, optimized: bool) -> Serving:
    total = math.fsum(weight for _, weight in rows)
    side = "candidate" if optimized else "baseline"
    times_us = [(row.candidate_us if optimized else row.baseline_us) or 0.0 for row, _ in rows]
    call_us = math.fsum(us * weight for us, (_, weight) in zip(times_us, rows, strict=True)) / total
    each = [_joules(row, side) for row, _ in rows]
    known = [one for one in each if one is not None]
    joules = (
        math.fsum(one * weight for one, (_, weight) in zip(known, rows, strict=True)) / total
        if len(known) == len(each)
        else None
    )
    usd = prices.call_usd(device, call_us, joules)
    return Serving(device, optimized, call_us, joules, None if usd is None else usd * 1e6, len(rows))


def _joules(row: ShapeResult, side: str) -> float | None:
    """Joules per call, including idle power, from ``shapes[].energy`` of a verdict."""
    found = ((row.energy or {}).get(side) or {}).get("joules")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def _is_timed(row: ShapeResult) -> bool:
    times = (row.baseline_us, row.candidate_us)
    return row.timed and all(isinstance(time, (int, float)) and time > 0 for time in times)


def _key(dims: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in dims.items()))
