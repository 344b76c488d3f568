"""The names of sizes in a request, held against those that the task's file declares: read as text, nothing is run.

What a file without `DIMS` can vary is found by a worker, so that its names are checked only there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.errors import FieldError

_LONGEST_PARSED = 30_000  # characters; other requests wait meanwhile


def declared(source: str) -> tuple[str, ...] | None:
    """The names in a task's `DIMS`; None where the file has none, or they cannot be told without running it."""
    if "DIMS" not in source or len(source) > _LONGEST_PARSED:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if sum(isinstance(node, ast.Name) and node.id == "DIMS" for node in ast.walk(tree)) != 1:
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
    """Shapes and rows of traffic that name a size which the task does not declare."""
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
