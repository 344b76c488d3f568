"""The result of a search so far: free sizes, choices, and what cannot vary."""

from __future__ import annotations

from dataclasses import dataclass, field

from evaluator.shapes.inference.probing import Values

#: Limit for inputs, weights and outputs together, at proposed sizes.
MOST_BYTES = 2 << 30


@dataclass
class Axis:
    """A free size: ``names`` that move together, all of them multiples of ``step`` from ``low`` to ``high``."""

    names: tuple[str, ...]
    default: int
    step: int
    low: int = 0
    high: int = 0


@dataclass
class Found:
    """What the search found.

    Attributes:
        axes: free sizes.
        choices: sizes and dtypes that take one of a few values, by name.
        fixed: what cannot be varied, and why.
        sentences: what else the user should know.
    """

    axes: list[Axis] = field(default_factory=list)
    choices: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    def corner(self, base: Values, sizes: dict[int, int]) -> Values:
        """Values with these sizes for axes, by index in :attr:`axes`; the others unchanged."""
        values = dict(base)
        for index, size in sizes.items():
            values |= dict.fromkeys(self.axes[index].names, size)
        return values
