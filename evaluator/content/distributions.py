"""Contents that expose wrong kernels: constant rows, large means, wide dynamic range, small integers, other
scales.

The draws of ``get_inputs`` are an example, not a contract: if no draw is negative, contents still have both signs,
unless the task declares its ``DOMAIN``. Structure (zeros at the same places, few values) stays in all of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput, logical
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import from_float64, largest, to_float64


class HostDraws:
    """The referee's own random numbers, in numpy."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(secrets.randbits(128))

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        """Uniform numbers."""
        return self._generator.uniform(low, high, shape)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return self._generator.normal(0.0, 1.0, shape)


def _constant_rows(rows: Array, draws: Any) -> Array:
    return rows[:, :1] + 0.0 * rows


def _large_mean(rows: Array, draws: Any) -> Array:
    """Cancellation: a variance computed as E[x^2] - E[x]^2 loses every digit here."""
    return rows + 64.0 * (float(abs(rows.std())) or 1.0)


def _wide_range(rows: Array, draws: Any) -> Array:
    """Rows of very different magnitude and a heavy tail inside each row."""
    xp = space(rows)
    magnitudes = xp.exp2(draws.uniform(-6.0, 6.0, (rows.shape[0], 1)))
    return rows * magnitudes * xp.exp(draws.normal(tuple(rows.shape)))


def _small_integers(rows: Array, draws: Any) -> Array:
    """Exactly representable sums: many kernels must be exact here."""
    return _clip(space(rows).rint(rows * 3.0), 8.0)


def _clip(values: Array, limit: float) -> Array:
    """Values clipped to +-limit, real and imaginary part separately."""
    if space(values).iscomplex(values):
        return values.real.clip(-limit, limit) + 1j * values.imag.clip(-limit, limit)
    return values.clip(-limit, limit)


def _scaled(rows: Array, draws: Any) -> Array:
    """Fails an approximation that is only right near zero."""
    return rows * float(draws.uniform(1.5, 4.0, (1, 1))[0, 0])


_TRANSFORMS: dict[str, Callable[[Array, Any], Array]] = {
    "constant_rows": _constant_rows,
    "large_mean": _large_mean,
    "wide_range": _wide_range,
    "small_integers": _small_integers,
    "scaled": _scaled,
}


def names(inputs: list[TensorInput]) -> list[str]:
    """Names of the distributions that suit these inputs. ``task`` is the task's own and comes twice."""
    others = [name for name in _TRANSFORMS if any(changes(name, tensor) for tensor in inputs)]
    return ["task", "task", *others]


def transformed(name: str, rows: Array, tensor: TensorInput, draws: Any, *, signs: bool = False) -> Array:
    """Turns elements of the task's own distribution into the named one, not yet rounded to the input's dtype.

    Args:
        name: one of :func:`names` except ``task``.
        rows: float64 or complex128, shape (rows, last dimension), of the host or a device.
        tensor: the input.
        draws: random numbers in the same kind of array, see :class:`HostDraws`.
        signs: use both signs if no draw is negative and the task does not say why.
    """
    xp = space(rows)
    own = rows
    if signs and tensor.may_be_negative:
        rows = xp.where(draws.uniform(0.0, 1.0, tuple(rows.shape)) < 0.5, -rows, rows)
    values = _clip(_TRANSFORMS[name](rows, draws), largest(tensor.meta.dtype))
    if tensor.keeps_zeros:
        values = xp.where(own == 0.0, 0.0, values)
    if tensor.structure.domain == "positive":
        values = xp.where(values > 0.0, values, own)
    return values


def changes(name: str, tensor: TensorInput) -> bool:
    """Whether the named distribution changes this input."""
    stays = tensor.structure.domain == "in_range" and name != "constant_rows"
    return name != "task" and tensor.transformable and not stays


def draw(name: str, tensor: TensorInput, *, signs: bool = False, common: Array | None = None) -> Array:
    """A fresh content of the named distribution: flat, in the carrier dtype, on the host.

    Arguments as in :func:`transformed`.
    """
    generator = np.random.default_rng(secrets.randbits(128))
    draws, offsets = tensor.draw(1, generator, common)
    content = tensor.rebuild(int(draws[0]), int(offsets[0]))
    if not changes(name, tensor):
        return content
    elements = logical(content, tensor.meta)
    rows = to_float64(elements, tensor.meta.dtype).reshape(-1, elements.shape[-1])
    values = transformed(name, rows, tensor, HostDraws(), signs=signs)
    elements[...] = from_float64(values, tensor.meta.dtype).reshape(elements.shape)
    return content
