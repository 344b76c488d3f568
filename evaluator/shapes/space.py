"""The dimensions of a task, validated: they come from an untrusted process."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from evaluator.errors import RoleFailure

_MAX_DIMS = 12
Value = int | float | str | bool
Dims = dict[str, Value]


@dataclass(frozen=True)
class IntegerDim:
    """Integers from ``low`` to ``high``, multiples of ``multiple_of``."""

    low: int
    high: int
    multiple_of: int
    default: int


@dataclass(frozen=True)
class ChoiceDim:
    """One of a few values, such as dtypes."""

    values: tuple[Value, ...]
    default: Value


Space = dict[str, IntegerDim | ChoiceDim]


def ends(dim: IntegerDim) -> tuple[int, int]:
    """The smallest and the largest legal value."""
    return -(-dim.low // dim.multiple_of) * dim.multiple_of, dim.high // dim.multiple_of * dim.multiple_of


def octaves(dim: IntegerDim) -> tuple[float, float]:
    """Base-2 logarithms of both ends; a size of 0 counts as 1."""
    low, high = ends(dim)
    return math.log2(max(low, 1)), math.log2(max(high, 1))


def is_legal(dim: IntegerDim, value: int) -> bool:
    """Whether the dimension can have this value."""
    return dim.low <= value <= dim.high and value % dim.multiple_of == 0


def nearest(dim: IntegerDim, value: float, tier: int = 1) -> int:
    """The legal value nearest to ``value`` on the alignment tier, if the range has one there; 0 only if it is the
    end.
    """
    for step in (math.lcm(dim.multiple_of, tier), dim.multiple_of):
        first, last = -(-max(dim.low, 1) // step) * step, dim.high // step * step
        if first <= last:
            return int(min(max(round(value / step) * step, first), last))
    return ends(dim)[0]


def _refuse(sentence: str) -> RoleFailure:
    return RoleFailure("task_rejected", sentence)


def parse_space(dims: Any) -> Space:
    """Validates the ``dims`` object of a description.

    Raises:
        RoleFailure: with the word ``task_rejected`` and a sentence for the user.
    """
    if not isinstance(dims, dict) or len(dims) > _MAX_DIMS:
        raise _refuse(f"DIMS must be a mapping of at most {_MAX_DIMS} dimensions")
    space: Space = {}
    for name, fields in dims.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(fields, dict):
            raise _refuse("DIMS must map identifiers to Dim or Choice")
        if "choices" in fields:
            values = tuple(fields["choices"])
            if not values or not all(isinstance(value, (int, float, str, bool)) for value in values):
                raise _refuse(f"DIMS[{name!r}]: a Choice needs plain values")
            default = fields["default"] if fields.get("default") in values else values[0]
            space[name] = ChoiceDim(values, default)
            continue
        low, high = fields.get("min"), fields.get("max")
        step, default = fields.get("multiple_of", 1), fields.get("default")
        numbers = [low, high, step]
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise _refuse(f"DIMS[{name!r}]: min, max and multiple_of must be integers")
        assert isinstance(low, int) and isinstance(high, int) and isinstance(step, int)
        if not (0 <= low <= high < 1 << 40 and 1 <= step <= max(high, 1)):
            raise _refuse(f"DIMS[{name!r}]: needs 0 <= min <= max and multiple_of >= 1")
        first, last = ends(IntegerDim(low, high, step, high))
        if first > last:
            raise _refuse(f"DIMS[{name!r}] is empty: no multiple of {step} lies from {low} to {high}")
        if not isinstance(default, int):
            default = last
        space[name] = IntegerDim(low, high, step, min(max(default // step * step, first), last))
    return space


def as_fields(space: Space) -> dict[str, dict[str, Any]]:
    """The space in the form of a description, which :func:`parse_space` reads."""
    return {
        name: {"min": dim.low, "max": dim.high, "multiple_of": dim.multiple_of, "default": dim.default}
        if isinstance(dim, IntegerDim)
        else {"choices": list(dim.values), "default": dim.default}
        for name, dim in space.items()
    }


def defaults(space: Space) -> Dims:
    """The task's own shape: every dimension at its default for this kind of device."""
    return {name: dim.default for name, dim in space.items()}


def in_words(dims: Dims) -> str:
    """A shape in words."""
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "the task's one shape"


def varying(space: Space, configuration: Collection[str], named: Collection[str] = ()) -> list[str]:
    """The dimensions that may have other sizes than their own in timed shapes.

    A module is deployed with one configuration, so the arguments of `get_init_inputs` keep the file's values.
    Their range in `DIMS` says what is legal, and only correctness is checked there (stratum `adversarial`). They
    vary if the user names them (`space` of a request, `VARIES` of a file; given shapes and traffic are used as
    they are), or if no size of the task varies at run time.

    Args:
        space: of the task.
        configuration: the arguments of its `get_init_inputs`.
        named: what its user also wants varied.
    """
    free = [name for name, dim in space.items() if isinstance(dim, ChoiceDim) or ends(dim)[0] < ends(dim)[1]]
    found = [name for name in free if name not in configuration or name in named]
    if any(isinstance(space[name], IntegerDim) for name in found):
        return found
    return [name for name in free if name in found or isinstance(space[name], IntegerDim)]


def check_shape(space: Space, dims: Any) -> Dims:
    """A shape that a user asked for, validated against the space; missing dimensions take their defaults.

    Raises:
        RoleFailure: an unknown dimension or a value outside its range.
    """
    if not isinstance(dims, dict):
        raise _refuse("a shape must be a mapping from dimension names to values")
    shape = defaults(space)
    for name, value in dims.items():
        dim = space.get(name)
        if dim is None:
            raise _refuse(f"the task has no dimension {name!r}")
        if isinstance(dim, ChoiceDim):
            legal = value in dim.values
        else:
            legal = isinstance(value, int) and is_legal(dim, value)
        if not legal:
            raise _refuse(f"{name}={value!r} is outside the task's DIMS")
        shape[name] = value
    return shape
