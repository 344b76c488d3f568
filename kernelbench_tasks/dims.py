"""Declarations of a task's dimensions: legal ranges and legal choices.

A task file declares `DIMS`, a mapping from a dimension's name to a `Dim` (an integer range) or a `Choice` (a short list
of values such as dtypes). The referee samples from it. This module neither samples nor imports torch, so any machine can
read a task's space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Scalar: TypeAlias = int | float | str | bool


@dataclass(frozen=True)
class Dim:
    """An integer dimension with an inclusive range.

    Args:
        min: Smallest legal size, at least 0.
        max: Largest legal size, inclusive.
        multiple_of: Every legal size is a multiple of this (1 means any size).
        default: The size used on a CPU unless another is requested; by default the legal size nearest to the middle of the
            range on a logarithmic scale.
        gpu: The same on a GPU; by default `default`.

    Raises:
        TypeError: A value is not an integer (booleans are rejected too).
        ValueError: The range is empty, negative, or does not contain one of the defaults.
    """

    min: int
    max: int
    multiple_of: int = 1
    default: int | None = None
    gpu: int | None = None

    def __post_init__(self) -> None:
        for field in ("min", "max", "multiple_of"):
            _require_int(field, getattr(self, field))
        if self.multiple_of < 1:
            raise ValueError(f"multiple_of must be at least 1, got {self.multiple_of}")
        if self.min < 0:
            raise ValueError(f"min must not be negative, got {self.min}")
        if self.smallest > self.largest:
            raise ValueError(f"no multiple of {self.multiple_of} lies in [{self.min}, {self.max}]")
        if self.default is None:
            middle = round((max(self.smallest, 1) * max(self.largest, 1)) ** 0.5)
            object.__setattr__(self, "default", self.nearest(middle))
        _require_int("default", self.default)
        if self.default not in self:
            raise ValueError(f"default {self.default} is not a legal size of {self!r}")
        if self.gpu is None:
            object.__setattr__(self, "gpu", self.default)
        _require_int("gpu", self.gpu)
        if self.gpu not in self:
            raise ValueError(f"gpu={self.gpu} is not a legal size of {self!r}")

    @property
    def smallest(self) -> int:
        """The smallest legal size: `min` rounded up to a multiple."""
        return -(-self.min // self.multiple_of) * self.multiple_of

    @property
    def largest(self) -> int:
        """The largest legal size: `max` rounded down to a multiple."""
        return self.max // self.multiple_of * self.multiple_of

    def __contains__(self, size: object) -> bool:
        return _is_int(size) and self.min <= size <= self.max and size % self.multiple_of == 0  # type: ignore[operator]

    def nearest(self, size: int) -> int:
        """The legal size closest to `size`; rounds down on a tie."""
        below = max(self.smallest, min(self.largest, size // self.multiple_of * self.multiple_of))
        above = min(self.largest, below + self.multiple_of)
        return above if abs(above - size) < abs(below - size) else below

    def as_dict(self) -> dict[str, int | None]:
        """Plain values for JSON."""
        return {"min": self.min, "max": self.max, "multiple_of": self.multiple_of, "default": self.default}


@dataclass(frozen=True, init=False)
class Choice:
    """A dimension that takes one of a few named values, for example a dtype.

    Args:
        values: The legal values, at least one, all different: strings, numbers or booleans.
        default: One of the values; by default the first.

    Raises:
        TypeError: A value is not a string, number or boolean.
        ValueError: There is no value, a value is repeated, or the default is not among the values.
    """

    values: tuple[Scalar, ...]
    default: Scalar

    def __init__(self, *values: Scalar, default: Scalar | None = None) -> None:
        if not values:
            raise ValueError("a Choice needs at least one value")
        for value in values:
            if not isinstance(value, (str, int, float, bool)):
                raise TypeError(f"a choice must be a string, number or boolean, got {type(value).__name__}")
        if len({(type(value), value) for value in values}) != len(values):
            raise ValueError(f"a value is repeated in {values!r}")
        chosen = values[0] if default is None else default
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "default", chosen)
        if chosen not in self:
            raise ValueError(f"default {chosen!r} is not among {values!r}")

    def __contains__(self, value: object) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in self.values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"choices": list(self.values), "default": self.default}


Dims: TypeAlias = Mapping[str, Dim | Choice]


def check_dims(dims: object) -> dict[str, Dim | Choice]:
    """Validate a task's `DIMS` and return it as a plain dict.

    Raises:
        TypeError: `dims` is not a mapping, or an entry is neither a `Dim` nor a `Choice`.
        ValueError: A name is not a Python identifier, or `dims` is empty.
    """
    if not isinstance(dims, Mapping):
        raise TypeError(f"DIMS must be a mapping, got {type(dims).__name__}")
    if not dims:
        raise ValueError("DIMS is empty; leave it out to have the space inferred")
    checked: dict[str, Dim | Choice] = {}
    for name, dim in dims.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} in DIMS is not a usable dimension name")
        if not isinstance(dim, (Dim, Choice)):
            raise TypeError(f"DIMS[{name!r}] must be a Dim or a Choice, got {type(dim).__name__}")
        checked[name] = dim
    return checked


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_int(field: str, value: object) -> None:
    if not _is_int(value):
        raise TypeError(f"{field} must be an integer, got {value!r}")
