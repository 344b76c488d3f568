"""Large constants among the results, which a module writes at masked places.

An example is attention scores with -1e9, or the dtype's lowest number, for masked keys. Next to these, the root
mean square of a row says nothing about its other elements, and any value would pass for them. So they are excluded
from it. A constant does not change when inputs are moved. It must also be far larger than everything else, and
larger than saturation values of functions.
"""

from __future__ import annotations

from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import epsilon, largest

#: Below this, values are not used as masks, and results of honest sums may stay the same by chance.
_LEAST = 1e4
#: How many times the root mean square of the other elements a constant must be.
_TIMES_THE_OTHERS = 1024.0
#: A module with more distinct ones copies numbers, such as integers that were not moved.
_MOST = 4


def in_range(values: Array, own: Array, dtype: str) -> Array:
    """The oracle's values, or the reference's own where the task's dtype cannot represent those.

    ``torch.finfo(x.dtype).min`` in float64 is another number, which code in the task's dtype cannot return.
    """
    xp = space(values)
    beyond = xp.isfinite(values) & (xp.abs(values) > largest(dtype)) & xp.isfinite(own)
    return xp.where(beyond, own, values) if bool(beyond.any()) else values


def find(dtype: str, exact: Array, own: Array, moved: Array | None) -> tuple[float, ...]:
    """The reference's values that are such constants; empty if there are none or it is unknown."""
    xp = space(exact)
    if moved is None or xp.iscomplex(exact):
        return ()
    finite = xp.isfinite(exact) & xp.isfinite(own)
    magnitude = xp.where(finite, xp.abs(exact), 0.0)
    if float(magnitude.max()) < _LEAST:
        return ()
    with xp.quiet():
        same = (moved == exact) & (xp.abs(own - exact) <= epsilon(dtype) * magnitude)
    constant = finite & same & (magnitude >= _LEAST)
    others = finite & ~constant
    if not bool(constant.any()) or not bool(others.any()):
        return ()
    constant &= magnitude > _TIMES_THE_OTHERS * _rms(magnitude[others])
    values = xp.unique(own[constant])
    return tuple(float(value) for value in values) if xp.size(values) <= _MOST else ()


def _rms(magnitude: Array) -> float:
    """Root mean square of numbers whose squares may overflow float64."""
    peak = float(magnitude.max())
    return peak * float(space(magnitude).mean((magnitude / peak) ** 2)) ** 0.5 if peak else 0.0


def are_fills(values: Array, fills: tuple[float, ...]) -> Array | None:
    """Which of the reference's values in some rows are such constants; None if none is."""
    if not fills:
        return None
    found = space(values).zeros(values, tuple(values.shape))
    for fill in fills:
        found |= values == fill
    return found if bool(found.any()) else None


def rms_of_rows(magnitude: Array, fills: Array | None) -> Array:
    """Root mean square of each row without its ``fills``, shape (rows, 1); 0 for a row of nothing else."""
    xp = space(magnitude)
    if fills is None:
        return xp.sqrt(xp.mean_of_rows(magnitude**2))
    squares = xp.where(fills, 0.0, magnitude) ** 2
    share = xp.mean_of_rows(xp.where(fills, 0.0, 1.0 + 0.0 * magnitude))
    return xp.sqrt(xp.mean_of_rows(squares) / xp.maximum(share, 1.0 / magnitude.shape[1]))
