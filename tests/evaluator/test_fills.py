"""A large constant among the results, such as a mask of attention scores writes, hides nothing of what stands beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evaluator.oracle import glance
from evaluator.oracle.compare import compare
from evaluator.oracle.numbers import from_float64, to_float64
from evaluator.oracle.tolerance import Expected, expect

_SHAPE = (64, 128)
_LOWEST = "finfo(x.dtype).min"


def _masked(dtype: str, fill: float | str, size: float = 1.0, on: str = "host") -> tuple[Any, Any, Expected]:
    """Values of a right kernel, the mask, and the expectation for ``scores.masked_fill(mask, fill)``, causal."""
    generator = np.random.default_rng(5)
    left = to_float64(from_float64(size * generator.normal(size=(64, 96)), dtype), dtype)
    right = to_float64(from_float64(generator.normal(size=(96, 128)), dtype), dtype)
    mask = np.triu(np.ones(_SHAPE, dtype=bool), 100)
    lowest = {
        name: float(torch.finfo(getattr(torch, name)).min) for name in ("float64", "float32", "bfloat16")
    }
    in_float64 = lowest["float64"] if isinstance(fill, str) else fill
    in_dtype = lowest[dtype] if isinstance(fill, str) else fill
    accurate = np.float64 if dtype == "float64" else np.float32
    product = left.astype(accurate) @ right.astype(accurate)
    other = left[:, ::-1].astype(accurate) @ right[::-1].astype(accurate)
    own = np.where(mask, in_dtype, to_float64(from_float64(product.astype(np.float64), dtype), dtype))
    own = to_float64(from_float64(own, dtype), dtype)
    step = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}[dtype]
    moved = np.where(mask, in_float64, (left * (1 + step * generator.choice([-1, 1], left.shape))) @ right)
    given: list[Any] = [np.where(mask, in_float64, left @ right), own, moved]
    if on == "device":
        given = [torch.from_numpy(values) for values in given]
    exact, own, moved = (values.reshape(-1) for values in given)
    mine = from_float64(np.where(mask, in_dtype, other.astype(np.float64)), dtype)
    return mine, mask, expect(dtype, _SHAPE, exact, own, moved, 128)


_KINDS = [
    ("float32", -1e9), ("float32", -1e30), ("float32", _LOWEST), ("float64", _LOWEST), ("float64", -1e9),
    ("bfloat16", -1e9), ("bfloat16", _LOWEST),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "fill"), _KINDS)
def test_what_stands_beside_a_fill_is_looked_at(dtype: str, fill: float | str) -> None:
    mine, mask, expected = _masked(dtype, fill)
    assert compare(mine.reshape(-1), expected).ok
    zeros, shifted, unfilled = (
        from_float64(values, dtype).reshape(-1)
        for values in (
            np.where(mask, to_float64(mine, dtype), 0.0),
            np.where(mask, to_float64(mine, dtype), np.where(mask, 0.0, to_float64(mine, dtype)) + 0.3),
            np.where(mask, 0.0, to_float64(mine, dtype)),
        )
    )
    for wrong in (zeros, shifted, unfilled):
        assert not compare(wrong, expected).ok
    assert expected.rms < 100.0
    own = from_float64(np.asarray(expected.own), dtype).reshape(-1)
    assert glance.agree(mine.reshape(-1), own, dtype, expected.bounds, _SHAPE)
    assert not glance.agree(zeros, own, dtype, expected.bounds, _SHAPE)
    assert not glance.agree(zeros, own, dtype, expected.bounds, _SHAPE, thorough=True)


@pytest.mark.parametrize("fill", [-1e9, _LOWEST])
def test_a_device_s_arithmetic_says_the_same(fill: float | str) -> None:
    mine, mask, expected = _masked("float32", fill, on="device")
    host = _masked("float32", fill)[2]
    assert expected.fills == host.fills and len(host.fills) == 1
    np.testing.assert_allclose(expected.bound.numpy(), host.bound)
    zeros = np.where(mask, mine, np.float32(0.0)).astype(np.float32)
    assert compare(torch.from_numpy(mine.astype(np.float32)).reshape(-1), expected).ok
    assert not compare(torch.from_numpy(zeros).reshape(-1), expected).ok
    own = expected.own.float().reshape(-1)
    assert not glance.agree(torch.from_numpy(zeros).reshape(-1), own, "float32", expected.bounds, _SHAPE)


@pytest.mark.parametrize(
    ("fill", "size"),
    [(1.0, 1e-3), (6.0, 1e-6), (-1e9, 1e7)],
)
def test_saturation_and_numbers_of_like_size_are_no_fills(fill: float, size: float) -> None:
    """Where a function saturates at 1 the rest may be noise, which nobody has to get right to the last bit."""
    assert _masked("float32", fill, size)[2].fills == ()


def test_copied_numbers_are_no_fills() -> None:
    """Integers among the inputs are not moved, so what is made of them stays as it is."""
    generator = np.random.default_rng(6)
    exact = np.concatenate(
        [generator.integers(10**5, 10**8, (32, 4)), generator.normal(size=(32, 60))], axis=1
    )
    own = exact.astype(np.float32).astype(np.float64)
    moved = np.concatenate([exact[:, :4], exact[:, 4:] * (1 + 2.0**-23)], axis=1)
    expected = expect("float32", exact.shape, exact.reshape(-1), own.reshape(-1), moved.reshape(-1))
    assert expected.fills == ()
