"""Prompts as files, so that they can be read, reviewed and versioned; filled with `string.Template`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template


def fill(name: str, **values: object) -> str:
    """The prompt `name`.md with its `$placeholders` replaced.

    Raises:
        KeyError: if a placeholder has no value.
    """
    return _template(name).substitute({key: str(value) for key, value in values.items()})


@cache
def _template(name: str) -> Template:
    return Template((Path(__file__).parent / f"{name}.md").read_text())
