"""Contents that find wrong kernels: constant rows, large means, wide dynamic range, small integers, the task's own draws."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from evaluator.content.pools import Array, TensorInput
from evaluator.oracle.numbers import from_float64, is_floating, to_float64


def _rows(values: Array, tensor: TensorInput) -> Array:
    width = tensor.meta.shape[-1] if tensor.meta.shape else 1
    return values.reshape(-1, max(width, 1))


def _constant_rows(values: Array, tensor: TensorInput, generator: np.random.Generator) -> Array:
    rows = _rows(values, tensor)
    return np.repeat(rows[:, :1], rows.shape[1], axis=1)


def _large_mean(values: Array, tensor: TensorInput, generator: np.random.Generator) -> Array:
    """Cancellation: a variance computed as E[x^2] - E[x]^2 loses every digit here."""
    moved: Array = values + 64.0 * (float(np.std(values)) or 1.0)
    return moved


def _wide_range(values: Array, tensor: TensorInput, generator: np.random.Generator) -> Array:
    """Rows of very different magnitude and a heavy tail inside each row."""
    rows = _rows(values, tensor)
    magnitudes = np.exp2(generator.uniform(-6, 6, (rows.shape[0], 1)))
    wide: Array = rows * magnitudes * np.exp(generator.normal(0, 1, rows.shape))
    return wide


def _small_integers(values: Array, tensor: TensorInput, generator: np.random.Generator) -> Array:
    """Exactly representable sums: many kernels must be exact here."""
    return np.clip(np.rint(values * 3.0), -8, 8)


#: Needs values of both signs: a task whose inputs are positive may take their logarithm.
_FOR_SIGNED: dict[str, Callable[[Array, TensorInput, np.random.Generator], Array]] = {
    "large_mean": _large_mean,
    "wide_range": _wide_range,
    "small_integers": _small_integers,
}


def names(inputs: list[TensorInput]) -> list[str]:
    """Names of the distributions that suit these inputs; ``task`` is the task's own and comes twice."""
    chosen = ["task", "task"]
    floats = [tensor for tensor in inputs if is_floating(tensor.meta.dtype) and tensor.rollable]
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
    if name == "task" or not is_floating(tensor.meta.dtype) or not tensor.rollable:
        return
    transform = _constant_rows if name == "constant_rows" else _FOR_SIGNED[name]
    values = to_float64(target, tensor.meta.dtype)
    target[:] = from_float64(transform(values, tensor, generator).reshape(-1), tensor.meta.dtype)
