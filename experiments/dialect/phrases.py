"""Sources as lists of phrases: what a template has in one line, or one value, is one token of the dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HOLE = re.compile(r"@([a-z_]+)@")


def phrases(template: str, values: Mapping[str, str]) -> list[str]:
    """Phrases whose concatenation is ``template`` with every ``@name@`` filled in.

    Args:
        template: text; each of its lines is a phrase, cut where it has a hole.
        values: by name; one with several lines is several phrases, an empty one none.

    Raises:
        KeyError: a hole that has no value.
    """
    found: list[str] = []
    for index, part in enumerate(_HOLE.split(template)):
        text = values[part] if index % 2 else part
        found.extend(text.splitlines(keepends=True))
    return found
