"""How sizes and precision are told to a model: one that is asked, and one that is trained on what it will be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.precision import DEFAULT, TIERS, declared


def space_text(dims: Mapping[str, Any]) -> str:
    """A task's declared space, a line a dimension; "" for none."""
    lines = []
    for name, dim in dims.items():
        if "choices" in dim:
            lines.append(f"{name}: one of {', '.join(map(str, dim['choices']))}")
        else:
            multiple = f", a multiple of {dim['multiple_of']}" if (dim.get("multiple_of") or 1) > 1 else ""
            lines.append(f"{name}: {dim['min']} to {dim['max']}{multiple}")
    return listed(lines)


def precision_text(task_source: str) -> str:
    """What the tier that a task's file declares allows."""
    return TIERS.get(declared(task_source), TIERS[DEFAULT]).words


def shape_words(dims: Mapping[str, Any]) -> str:
    """One shape in a line."""
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def timed_words(dims: Mapping[str, Any], stratum: object) -> str:
    """The same of a shape that is timed, with what it stands for, where that is known."""
    return shape_words(dims) + (f" ({stratum})" if stratum in ("own", "near", "small", "traffic") else "")


def listed(lines: Iterable[str]) -> str:
    """Lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)
