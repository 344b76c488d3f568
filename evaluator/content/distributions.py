"""Contents that find wrong kernels: constant rows, large means, wide dynamic range, small integers, the task's own draws."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput, logical
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import from_float64, is_inexact, largest, to_float64


class HostDraws:
    """Random numbers of the referee's own, in numpy."""

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
    """Values cut off at +-limit, real and imaginary part apart."""
    if space(values).iscomplex(values):
        return values.real.clip(-limit, limit) + 1j * values.imag.clip(-limit, limit)
    return values.clip(-limit, limit)


#: Needs values of both signs: a task whose inputs are positive may take their logarithm.
_FOR_SIGNED: dict[str, Callable[[Array, Any], Array]] = {
    "large_mean": _large_mean,
    "wide_range": _wide_range,
    "small_integers": _small_integers,
}


def names(inputs: list[TensorInput]) -> list[str]:
    """Names of the distributions that suit these inputs; ``task`` is the task's own and comes twice."""
    chosen = ["task", "task"]
    floats = [tensor for tensor in inputs if is_inexact(tensor.meta.dtype) and tensor.rollable]
    if floats:
        chosen.append("constant_rows")
    if floats and all(tensor.signed for tensor in floats):
        chosen += list(_FOR_SIGNED)
    return chosen


def transformed(name: str, rows: Array, dtype: str, draws: Any) -> Array:
    """Elements of the task's own distribution as the named one has them, not yet rounded to ``dtype``.

    Args:
        name: one of :func:`names` but ``task``.
        rows: float64 or complex128, shape (rows, last dimension), of the host or a device.
        dtype: of the input.
        draws: random numbers in the same kind of array, see :class:`HostDraws`.
    """
    transform = _constant_rows if name == "constant_rows" else _FOR_SIGNED[name]
    return _clip(transform(rows, draws), largest(dtype))


def changes(name: str, tensor: TensorInput) -> bool:
    """Whether an input differs in the named distribution from the task's own."""
    return name != "task" and is_inexact(tensor.meta.dtype) and tensor.rollable


def fill(name: str, tensor: TensorInput, target: Array) -> None:
    """Writes a fresh content of the named distribution into ``target`` (flat, carrier dtype, on the host)."""
    generator = np.random.default_rng(secrets.randbits(128))
    draws, offsets = tensor.draw(1, generator)
    target[:] = tensor.rebuild(int(draws[0]), int(offsets[0]))
    if not changes(name, tensor):
        return
    dtype = tensor.meta.dtype
    elements = logical(target, tensor.meta)
    rows = to_float64(elements, dtype).reshape(-1, elements.shape[-1])
    values = transformed(name, rows, dtype, HostDraws())
    elements[...] = from_float64(values, dtype).reshape(elements.shape)
