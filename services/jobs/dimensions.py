"""Checks dimension names in a request against those that the task's file declares. Parses the file but never runs it.

For a file without `DIMS` only a worker can infer the dimensions, and it checks the names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.errors import FieldError
from services.jobs.parsing import LONGEST_PARSED, parsed


def declared(source: str) -> tuple[str, ...] | None:
    """Return the names in a task's `DIMS`; None if there is no `DIMS`, or its names are unknown without running the file."""
    if "DIMS" not in source or len(source) > LONGEST_PARSED:
        return None
    try:
        tree = parsed(source)
    except SyntaxError:
        return None
    if tree is None or sum(isinstance(node, ast.Name) and node.id == "DIMS" for node in ast.walk(tree)) != 1:
        return None  # changed somewhere, or assigned twice
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if not any(isinstance(one, ast.Name) and one.id == "DIMS" for one in targets):
            continue
        if isinstance(value, ast.Dict):
            names = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            if len(names) == len(value.keys):
                return tuple(str(name) for name in names)
    return None


def name_errors(
    source: str,
    shapes: Mapping[Any, Sequence[Mapping[str, Any]]] | None,
    traffic: Sequence[Any] | None = None,
) -> list[FieldError]:
    """Return an error for each shape or traffic row that names an undeclared dimension."""
    names = declared(source)
    if names is None:
        return []
    known = f"the task has no dimension {{!r}}; it has: {', '.join(names) or 'none'}"
    return [
        FieldError(field, known.format(name))
        for field, dims in _named(shapes, traffic)
        for name in dims
        if name not in names
    ]


def _named(
    shapes: Mapping[Any, Sequence[Mapping[str, Any]]] | None, traffic: Sequence[Any] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for split, rows in (shapes or {}).items():
        for number, dims in enumerate(rows):
            yield f"shapes.{split}.{number}", dims
    for number, row in enumerate(traffic or ()):
        yield f"traffic.{number}.dims", row.dims
