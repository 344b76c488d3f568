"""What the delivered file is told of the measurements beyond its tree, see `agent.bundle.measured`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from agent.bundle.measured import MOST_SHAPES, Measured
from agent.performance import analytic
from agent.performance.analytic import Prices
from agent.performance.demand import Machine, grid
from agent.portfolio.entries import Entry
from agent.portfolio.table import Array, tabulate

#: With fewer timed shapes a member has no prices.
_FEWEST = 6
_CACHE_BYTES = 32 << 20  # the prices do not depend on it


def measured(entries: Sequence[Entry], dims: Sequence[str], processors: int) -> Measured:
    """Worst cases, prices and shapes of a portfolio's members, in their order.

    Args:
        entries: the members.
        dims: dimensions that the file knows of a call, in the task's order.
        processors: multiprocessors of the GPU; 0 for a CPU, whose threads the verdicts name.
    """
    table = tabulate(entries)
    sizes = tuple(
        name for name in dims if table.shapes and all(type(shape.get(name)) is int for shape in table.shapes)
    )
    threads = max(int((entry.verdict.get("environment") or {}).get("threads") or 1) for entry in entries)
    reference_us = table.baseline_us / np.exp(table.reference)
    columns = [
        reference_us,
        *(table.baseline_us / np.exp(table.gains[:, column]) for column in range(len(entries))),
    ]
    machine = Machine(processors or threads, _CACHE_BYTES)
    prices = tuple(_prices(table.shapes, times_us, sizes, machine) for times_us in columns)
    return Measured(
        worst_cases=tuple(_worst(table.gains[:, column]) for column in range(len(entries))),
        sizes=sizes,
        units=machine.units,
        prices=prices if prices[0] is not None else None,
        shapes=tuple(far_apart(table.shapes, sizes, MOST_SHAPES)),
    )


def far_apart(
    shapes: Sequence[Mapping[str, Any]], sizes: Sequence[str], count: int
) -> list[Mapping[str, Any]]:
    """Up to `count` of the shapes, each as far as can be from those before it, in logarithms; the first is in the middle."""
    if not shapes:
        return []
    places = np.array([[math.log2(max(int(shape[name]), 1)) for name in sizes] or [0.0] for shape in shapes])
    chosen = [int(np.abs(places - np.median(places, axis=0)).sum(axis=1).argmin())]
    while len(chosen) < min(count, len(shapes)):
        away = np.abs(places[:, None] - places[None, chosen]).sum(axis=2).min(axis=1)
        away[chosen] = -1.0
        chosen.append(int(away.argmax()))
    return [shapes[index] for index in chosen]


def _worst(gains: Array) -> float:
    known = gains[~np.isnan(gains)]
    return math.exp(float(known.min())) if known.size else 0.0


def _prices(
    shapes: Sequence[Mapping[str, Any]], times_us: Array, sizes: Sequence[str], machine: Machine
) -> tuple[Prices, Prices] | None:
    known = np.isfinite(times_us) & (times_us > 0)
    if not sizes or known.sum() < _FEWEST or find_spec("scipy") is None:
        return None
    asked = [
        grid({name: shape[name] for name in sizes}) for shape, take in zip(shapes, known, strict=True) if take
    ]
    model = analytic.fit(asked, times_us[known], machine)
    return model.aligned, model.unaligned
