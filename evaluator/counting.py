"""Counts in sentences: "1 shape", "2 shapes"."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    Args:
        count: how many.
        noun: for one.
        plural: for any other number, where it is not the noun with an s.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
