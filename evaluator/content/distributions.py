"""Contents that find wrong kernels: constant rows, large means, wide dynamic range, small integers, the task's own draws."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from evaluator.content.pools import Array, TensorInput, logical
from evaluator.oracle.numbers import from_float64, is_inexact, largest, to_float64


def _constant_rows(rows: Array, generator: np.random.Generator) -> Array:
    return np.repeat(rows[:, :1], rows.shape[1], axis=1)


def _large_mean(rows: Array, generator: np.random.Generator) -> Array:
    """Cancellation: a variance computed as E[x^2] - E[x]^2 loses every digit here."""
    moved: Array = rows + 64.0 * (float(np.std(rows)) or 1.0)
    return moved


def _wide_range(rows: Array, generator: np.random.Generator) -> Array:
    """Rows of very different magnitude and a heavy tail inside each row."""
    magnitudes = np.exp2(generator.uniform(-6, 6, (rows.shape[0], 1)))
    wide: Array = rows * magnitudes * np.exp(generator.normal(0, 1, rows.shape))
    return wide


def _small_integers(rows: Array, generator: np.random.Generator) -> Array:
    """Exactly representable sums: many kernels must be exact here."""
    return _clip(np.rint(rows * 3.0), 8.0)


def _clip(values: Array, limit: float) -> Array:
    """Values cut off at +-limit, real and imaginary part apart."""
    if np.iscomplexobj(values):
        parts: Array = np.clip(values.real, -limit, limit) + 1j * np.clip(values.imag, -limit, limit)
        return parts
    clipped: Array = np.clip(values, -limit, limit)
    return clipped


#: Needs values of both signs: a task whose inputs are positive may take their logarithm.
_FOR_SIGNED: dict[str, Callable[[Array, np.random.Generator], Array]] = {
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


def fill(name: str, tensor: TensorInput, target: Array) -> None:
    """Writes a fresh content of the named distribution into ``target`` (flat, carrier dtype)."""
    generator = np.random.default_rng(secrets.randbits(128))
    draws, offsets = tensor.draw(1, generator)
    target[:] = tensor.rebuild(int(draws[0]), int(offsets[0]))
    dtype = tensor.meta.dtype
    if name == "task" or not is_inexact(dtype) or not tensor.rollable:
        return
    transform = _constant_rows if name == "constant_rows" else _FOR_SIGNED[name]
    elements = logical(target, tensor.meta)
    rows = to_float64(elements, dtype).reshape(-1, elements.shape[-1])
    values = _clip(transform(rows, generator), largest(dtype))
    elements[...] = from_float64(values, dtype).reshape(elements.shape)
