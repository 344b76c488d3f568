"""Writes a task file without `DIMS` as one with it: the inferred space and the user's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.errors import RoleFailure
from evaluator.shapes.inference.result import Inferred
from evaluator.shapes.space import ChoiceDim, IntegerDim, Space, as_fields, parse_space


def overridden(inferred: Inferred, wanted: Mapping[str, Any]) -> Space:
    """The inferred space with a user's overrides.

    Args:
        inferred: what was found.
        wanted: by name of a dimension, some of ``min``, ``max``, ``multiple_of`` and ``default``, or ``choices``.

    Raises:
        RoleFailure: a dimension that cannot be varied, or an invalid range; with the word ``task_rejected``.
    """
    fields = as_fields(inferred.space)
    first = {name: axis for axis, names in inferred.tied.items() for name in names}
    for name, given in wanted.items():
        if not isinstance(given, Mapping):
            raise RoleFailure("task_rejected", f"space[{name!r:.90}] must be a mapping")
        axis = first.get(name)
        if axis is None:
            reason = inferred.fixed.get(
                name, f"the file has no such size; there are: {', '.join(inferred.space)}"
            )
            raise RoleFailure("task_rejected", f"{name!r:.90} cannot be varied: {reason}")
        kept = {} if "choices" in given else {k: v for k, v in fields[axis].items() if k != "choices"}
        fields[axis] = {**kept, **given}
    return parse_space(fields)


def declared(source: str, inferred: Inferred, wanted: Mapping[str, Any]) -> str:
    """A task file that takes the names of an inferred space as keyword arguments, with that space as its `DIMS`.

    The user's overrides become its `VARIES`, see :func:`evaluator.shapes.space.varying`.
    """
    lines = [f"    {name!r}: {_dim(dim)},\n" for name, dim in inferred.space.items()]
    text = f"{source.rstrip()}\n\n\nimport kernelbench_tasks\n\nDIMS = {{\n{''.join(lines)}}}\n"
    named = [axis for axis, names in inferred.tied.items() if any(name in wanted for name in names)]
    return f"{text}VARIES = {named!r}\n" if named else text


def _dim(dim: IntegerDim | ChoiceDim) -> str:
    if isinstance(dim, ChoiceDim):
        values = ", ".join(repr(value) for value in dim.values)
        return f"kernelbench_tasks.Choice({values}, default={dim.default!r})"
    step = f", multiple_of={dim.multiple_of}" if dim.multiple_of > 1 else ""
    return f"kernelbench_tasks.Dim({dim.low}, {dim.high}{step}, default={dim.default})"


def told(inferred: Inferred) -> list[str]:
    """What was found, in lines for people."""
    if not inferred.ok:
        return [f"no size of the task can be varied: {inferred.reason}"]
    lines = []
    for name, dim in inferred.space.items():
        others = [other for other in inferred.tied.get(name, ()) if other != name]
        if isinstance(dim, ChoiceDim):
            words = ", ".join(repr(value) for value in dim.values)
        else:
            words = f"{dim.low} to {dim.high}"
            words += f", multiples of {dim.multiple_of}" if dim.multiple_of > 1 else ""
            words += f" ({dim.default} in the file)"
        lines.append(f"{name} is {words}" + (f"; {', '.join(others)} moves with it" if others else ""))
    alike: dict[str, list[str]] = {}
    for name, why in inferred.fixed.items():
        alike.setdefault(why, []).append(name)
    lines += [f"{', '.join(names)} cannot be varied: {why}" for why, names in alike.items()]
    return lines + list(inferred.sentences)
