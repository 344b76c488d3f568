"""Prompts as files, so that they can be read, reviewed and versioned.

`fill` is for those with plain `$placeholders`, `render` for Jinja templates (`NAME.md.j2`). What stands in a placeholder is data:
it is put in as it is and never read as a template.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Template

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill(name: str, **values: object) -> str:
    """The prompt `name`.md with its `$placeholders` replaced.

    Raises:
        KeyError: if a placeholder has no value.
    """
    return _template(name).substitute({key: str(value) for key, value in values.items()})


def render(name: str, **values: object) -> str:
    """The prompt `name`.md.j2.

    Raises:
        jinja2.UndefinedError: if a placeholder has no value.
    """
    return _environment().get_template(f"{name}.md.j2").render(values).strip() + "\n"


def code_block(text: str, language: str = "python") -> str:
    """A fenced block that its content cannot close: the fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


@cache
def _environment() -> Environment:
    # Prompts are text for a model, not HTML: nothing is escaped, and code is fenced by `code_block`.
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701
    )
    made.filters["code_block"] = code_block
    return made


@cache
def _template(name: str) -> Template:
    return Template((Path(__file__).parent / f"{name}.md").read_text())
