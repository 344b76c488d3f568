"""Checks dimension names in a request against those that the task's file declares. Parses the file but never runs it.

For a file without `DIMS` only a worker can infer the dimensions, and it checks the names.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.errors import FieldError

#: Longest source, in characters, that is parsed while other requests wait; ten times the size of a typical task.
LONGEST_PARSED = 30_000
# CPython 3.11 counts the depth of all threads' trees in one place: if a garbage collection lets another thread parse meanwhile, it
# raises SystemError.
_one_at_a_time = threading.Lock()


def parsed(source: str) -> ast.Module | None:
    """Return the syntax tree, or None if the source is nested too deep for this process, or another thread compiles something meanwhile.

    Raises:
        SyntaxError: it is no Python.
    """
    with _one_at_a_time:
        try:
            return ast.parse(source)
        except (ValueError, MemoryError, RecursionError, SystemError):
            return None


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
