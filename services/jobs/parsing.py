"""Parses Python that a request brings, in the API process."""

from __future__ import annotations

import ast
import threading

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
