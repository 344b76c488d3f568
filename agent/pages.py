"""The Jinja environment of every HTML page and report. What is shown may come from strangers, so that all of it is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined


def environment(
    folder: Path, filters: Mapping[str, Callable[..., Any]] | None = None, *, strict: bool = True
) -> Environment:
    """An environment that escapes every value.

    Args:
        folder: of the templates.
        filters: further filters, by name.
        strict: whether a name that is not there raises UndefinedError; else it is empty, as fields of a verdict may be missing.
    """
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined if strict else Undefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(filters or {})
    return made
