"""What optimized.py is told of the measurements, as plain Python: prices to rank members by, shapes to time again, worst cases.

The prices are those of `agent.performance.analytic`, microseconds per call, wave, step of a wave, byte and step anywhere, for
a grid whose last dimension is contiguous (`agent.performance.demand.grid`). They need not be right: they only say which two
members are worth timing at a shape that nobody saw before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.bundle.domain import Domain, Expression
from agent.performance.analytic import Prices

#: The most that a recalibration times.
MOST_SHAPES = 8


@dataclass(frozen=True)
class Measured:
    """What is known of members beyond the tree.

    Attributes:
        worst_cases: of each member the least speedup over the best baseline at a timed shape; 0 where nothing was timed.
        sizes: dimensions that the prices are for, in the task's order.
        units: multiprocessors, or threads of a CPU.
        prices: for aligned and for other sizes, of the reference and then each member (None where too little was timed); None
            without a model.
        shapes: up to `MOST_SHAPES` timed shapes that lie far from each other.
    """

    worst_cases: tuple[float, ...] = ()
    sizes: tuple[str, ...] = ()
    units: int = 1
    prices: tuple[tuple[Prices, Prices] | None, ...] | None = None
    shapes: tuple[Mapping[str, Any], ...] = field(default=())


def constants_text(
    measured: Measured | None, members: int, compiled: tuple[int, ...], shapes: tuple[Any, ...]
) -> str:
    """The constants of the dispatcher's modes.

    Args:
        measured: None where nothing is known.
        members: how many there are.
        compiled: indices of those that are a way to run the reference that anybody has.
        shapes: those of `measured` that can be called, with the dtypes of their inputs.
    """
    known = measured or Measured()
    worst = [*known.worst_cases, *[0.0] * members][:members]
    lines = [
        f"WORST_CASES = {[float(f'{value:.4g}') for value in worst]}  # of each member, of the best baseline's speed",
        f"COMPILED = {compiled!r}  # members that are baselines, too",
        f"UNITS = {max(known.units, 1)}  # multiprocessors, or threads, where members were timed",
        f"PRICED_SIZES = {known.sizes!r}",
    ]
    if known.prices is None:
        return "\n".join([*lines, "PRICES_US = None", *_calibration(())])
    lines += [
        "# Of the reference, then of each member, for sizes of whole 16 bytes and for others: which tiles, and microseconds per",
        "# call, round of tiles over the units, step of a round, byte, and step anywhere.",
        "PRICES_US = [",
        *(f"    {_prices(pair)}," for pair in known.prices),
        "]",
    ]
    return "\n".join([*lines, *_calibration(shapes)])


def example_text(domain: Domain, forward_inputs: tuple[str, ...], dtypes: int) -> tuple[str, bool]:
    """The function that makes up a call at given sizes, and whether it can: not where inputs are nested or unexplained.

    Args:
        domain: of the calls.
        forward_inputs: where the inputs are found, in the order of the call.
        dtypes: tensor inputs.
    """
    head = 'def _example(sizes, dtypes):\n    """Constructor arguments and inputs of such sizes: random numbers, for timing alone."""\n'
    texts: dict[str, str] = {}
    for number, tensor in enumerate(domain.tensors):
        if tensor.axes is not None:
            axes = "".join(f"{_value(axis)}, " for axis in tensor.axes)
            texts[tensor.place] = f"_random(({axes.rstrip()}), dtypes[{number}])" if axes else ""
    texts |= {
        item.place: _value(item.expression) if item.expression else repr(item.values[0])
        for item in domain.values
    }
    inputs = [texts.get(place, "") for place in forward_inputs]
    if domain.containers or domain.shapes is not None or not all(inputs) or dtypes == 0:
        return f'{head}    raise RuntimeError("inputs of this module cannot be made up")\n', False
    arguments = ", ".join(
        f"{item.place!r}: {_value(item.expression) if item.expression else repr(item.values[0])}"
        for item in domain.constructor
    )
    return f"{head}    return {{{arguments}}}, [{', '.join(inputs)}]\n", True


def _value(expression: Expression) -> str:
    named = Expression(
        expression.factor, tuple(f"sizes[{dim!r}]" for dim in expression.dims), expression.offset
    )
    return named.text()


def _prices(pair: tuple[Prices, Prices] | None) -> str:
    if pair is None:
        return "None"
    return repr(tuple((one.tile, tuple(float(f"{price:.4g}") for price in one.per_term)) for one in pair))


def _calibration(shapes: tuple[Any, ...]) -> list[str]:
    rows = [
        f"    ({dict(dims)!r}, ({''.join(f'torch.{name}, ' for name in names).rstrip()})),"
        for dims, names in shapes
    ]
    return [
        "# Shapes that a recalibration times, with the dtypes of their inputs.",
        "CALIBRATION = [",
        *rows,
        "]",
    ]
