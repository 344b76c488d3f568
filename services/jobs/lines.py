"""How long a source is, in the unit that people compare."""

from __future__ import annotations


def lines_of_code(source: str | None) -> int | None:
    """Lines that are neither blank nor only a comment."""
    if source is None:
        return None
    return sum(
        1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith(("#", "//"))
    )
