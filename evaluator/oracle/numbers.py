"""Numbers of torch's dtypes in numpy: bfloat16 and float8 are carried as bits and widened to float64 here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_EPSILON = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2, "complex64": 2.0**-23, "complex128": 2.0**-52,
}  # fmt: skip


def is_floating(dtype: str) -> bool:
    """True for real floating dtypes."""
    return dtype.startswith(("float", "bfloat"))


def is_inexact(dtype: str) -> bool:
    """True for real and complex floating dtypes: everything that is compared with a tolerance."""
    return is_floating(dtype) or dtype.startswith("complex")


def epsilon(dtype: str) -> float:
    """Spacing of the dtype's numbers just above 1."""
    return _EPSILON[dtype]


@cache
def _float8_table(exponent_bits: int, mantissa_bits: int, bias: int, has_infinity: bool) -> Array:
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    scale = 2.0**mantissa_bits
    normal = (1 + mantissa / scale) * np.exp2(exponent.astype(float) - bias)
    subnormal = mantissa / scale * 2.0 ** (1 - bias)
    values = sign * np.where(exponent == 0, subnormal, normal)
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        values[top & (mantissa == 0)] = np.inf * sign[top & (mantissa == 0)]
        values[top & (mantissa != 0)] = np.nan
    else:
        values[top & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    return values


def to_float64(values: Array, dtype: str) -> Array:
    """Widens carried values to float64, those of a complex dtype to complex128."""
    if dtype.startswith("complex"):
        return values.astype(np.complex128)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e4m3fn":
        return _float8_table(4, 3, 7, False)[values]
    if dtype == "float8_e5m2":
        return _float8_table(5, 2, 15, True)[values]
    return values.astype(np.float64)


def from_float64(values: Array, dtype: str) -> Array:
    """Rounds float64 (or complex128) values to a dtype, in its carrier.

    Values too large for a float8 become its largest number.
    """
    if dtype == "bfloat16":
        with np.errstate(over="ignore"):
            bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        # Round to nearest, ties to even, on the upper half. A NaN must not be rounded to a number.
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    if dtype.startswith("float8"):
        table = _float8_table(4, 3, 7, False) if dtype == "float8_e4m3fn" else _float8_table(5, 2, 15, True)
        finite = np.flatnonzero(np.isfinite(table))
        order = finite[np.argsort(table[finite], kind="stable")]
        sorted_values = table[order]
        right = np.clip(np.searchsorted(sorted_values, values), 1, order.size - 1)
        nearer_left = values - sorted_values[right - 1] < sorted_values[right] - values
        nearest = order[np.where(nearer_left, right - 1, right)].astype(np.uint8)
        return np.where(np.isnan(values), np.uint8(0x7F), nearest)
    with np.errstate(over="ignore"):
        return values.astype(np.dtype(dtype))


def largest(dtype: str) -> float:
    """The largest finite number of an inexact dtype (of either part, if it is complex)."""
    if dtype == "bfloat16":
        return float((2.0 - 2.0**-7) * 2.0**127)
    if dtype.startswith("float8"):
        return 448.0 if dtype == "float8_e4m3fn" else 57344.0
    return float(np.finfo(np.dtype(dtype)).max)
