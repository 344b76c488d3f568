"""What calls cost: joules, dollars, which member to run where times tie, and which GPU serves a module's traffic cheapest.

Prices come from whoever pays them: none is known here. A rented GPU's price per hour holds its electricity already; whoever
owns one gives the price of a kilowatt-hour, too, or instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.verdict import ShapeResult, Verdict

#: Members within this of the fastest are as fast: their joules decide.
TIE = 0.02
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Prices:
    """In US dollars.

    Attributes:
        per_hour: of a device, by the name that its driver gives it.
        per_kwh: of electricity; None where it is not paid apart.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)
    per_kwh: float | None = None

    def call_usd(self, device: str, call_us: float, joules: float | None) -> float | None:
        """What a call costs; None where neither price applies, or electricity has a price and joules are not known."""
        hourly = self.per_hour.get(device)
        if self.per_kwh is not None and joules is None:
            return None
        if hourly is None and self.per_kwh is None:
            return None
        time_usd = (hourly or 0.0) * call_us / 3.6e9
        return time_usd + ((self.per_kwh or 0.0) * joules / _JOULES_PER_KWH if joules is not None else 0.0)


def energy_aware(times_us: Mapping[str, float], joules: Mapping[str, float], *, within: float = TIE) -> str:
    """The member to run: of those whose times tie with the fastest, the one that needs least energy.

    Args:
        times_us: of each member.
        joules: of those whose energy was measured; where the fastest one's was not, it is taken, since nothing says that
            another saves anything.
        within: how much slower still ties.
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
    """What one device does with the traffic.

    Attributes:
        device: its name.
        optimized: whether this is the delivered module; otherwise the reference's best baseline.
        call_us: mean over the traffic.
        joules: likewise; None where they were not measured at every shape.
        usd_per_million: of calls; None where no price is set that applies.
        shapes: how many there are.
        is_cheapest: of all lines that have a price.
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
        """None where no price is set that applies."""
        return 1e6 / self.usd_per_million if self.usd_per_million else None


def serving(verdicts: Sequence[Verdict], prices: Prices) -> list[Serving]:
    """One line for the reference and one for the delivered module on each device that measured them, the cheapest first.

    Only shapes that were timed on every device count, so that none is judged by easier ones; each has the weight of the
    traffic, or all the same where no traffic is known.

    Args:
        verdicts: of one module, each measured on one device; of several of one device the first counts.
        prices: of whoever asks.
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
    """Of a call, idle power included, from ``shapes[].energy`` of a verdict."""
    found = ((row.energy or {}).get(side) or {}).get("joules")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def _is_timed(row: ShapeResult) -> bool:
    times = (row.baseline_us, row.candidate_us)
    return row.timed and all(isinstance(time, (int, float)) and time > 0 for time in times)


def _key(dims: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in dims.items()))
