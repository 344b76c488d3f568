"""Counts and rates in sentences: "1 shape", "2 shapes", "4.01 TB/s"."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    Args:
        count: how many.
        noun: for one.
        plural: for any other number, where it is not the noun with an s.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def prefixed(value: float, unit: str) -> str:
    """A rate with three digits and a prefix: ``4.01 TB/s`` for 4.01e12 and ``B/s``."""
    prefix, factor = next(
        ((prefix, factor) for prefix, factor in (("P", 1e15), ("T", 1e12)) if value >= factor), ("G", 1e9)
    )
    return f"{value / factor:.3g} {prefix}{unit}"
