"""A ceiling over several sizes: the best counts, and what each size gave is kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Tried:
    """Rates by name and size.

    Attributes:
        as_json: ``{name: [{"size": ..., "rate": ...}, ...]}`` in the order tried; names that no size could measure are left out.
    """

    def __init__(self) -> None:
        self.as_json: dict[str, list[dict[str, Any]]] = {}

    def best(
        self,
        name: str,
        sizes: Iterable[int],
        rate: Callable[[int], float | None],
        longest_s: float = float("inf"),
    ) -> float | None:
        """The highest rate, or None where no size has one.

        Args:
            name: of the ceiling.
            sizes: smallest first; see :mod:`evaluator.profiling.ceilings` for what they count.
            rate: measures one; None where the device cannot.
            longest_s: a side of matrices is left out if its product would take longer, by the rate of the one before.
        """
        rows: list[dict[str, Any]] = []
        for size in sizes:
            if rows and 2 * size**3 / rows[-1]["rate"] > longest_s:
                break
            found = rate(size)
            if found is not None:
                rows.append({"size": size, "rate": found})
        if rows:
            self.as_json[name] = rows
        return max((float(row["rate"]) for row in rows), default=None)
