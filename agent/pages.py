"""The Jinja environment of all HTML pages and reports. It escapes every value, since values may be untrusted."""

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
        folder: template folder.
        filters: additional filters, by name.
        strict: whether an undefined name raises UndefinedError; else it renders empty, since a verdict may lack fields.
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
