"""Derives dimensions from recorded shapes: which lengths varied, and which moved together.

A length that never changed stays a number. Lengths that were equal in every call are one dimension. One that was
always a whole multiple of another, the product of two others, or the same distance from another, is written in
terms of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evaluator.capture.signature import Leaf

#: A place of a length: index of the input, index of its dimension.
Place = tuple[int, int]
#: Two values of a pair of lengths fit "u + c" for some c half of the time by accident.
_LEAST_FOR_SUM = 3


@dataclass
class SeenDim:
    """A length that varied.

    Attributes:
        name: in `DIMS`.
        sizes: what was recorded, call by call.
        multiple_of: what every legal size is a multiple of.
        listed: only recorded sizes are legal.
    """

    name: str
    sizes: tuple[int, ...]
    multiple_of: int = 1
    listed: bool = False

    def text(self, default: int) -> str:
        """Its entry in `DIMS`."""
        seen = sorted(set(self.sizes))
        if self.listed:
            return f"Choice({', '.join(map(str, seen))}, default={default})"
        step = f", multiple_of={self.multiple_of}" if self.multiple_of > 1 else ""
        return f"Dim({seen[0]}, {seen[-1]}{step}, default={default})"


@dataclass
class SeenSpace:
    """What varied over some calls of a module.

    Attributes:
        dims: the free lengths by name.
        places: for each varying place its length as a Python expression of `dims`.
    """

    dims: dict[str, SeenDim] = field(default_factory=dict)
    places: dict[Place, str] = field(default_factory=dict)

    def at(self, call: int) -> dict[str, int]:
        """The dimensions of one of the calls."""
        return {name: dim.sizes[call] for name, dim in self.dims.items()}

    def length(self, place: Place, leaf: Leaf) -> str:
        """The length at a place, as an expression."""
        return self.places.get(place, str(leaf.shape[place[1]]))


def space_of(calls: Sequence[Sequence[Leaf]]) -> SeenSpace:
    """The space of some calls, each given by its inputs; all have the same numbers of inputs and of dimensions."""
    seen: dict[tuple[int, ...], list[Place]] = {}
    for index, leaf in enumerate(calls[0]):
        for dim in range(len(leaf.shape)):
            sizes = tuple(call[index].shape[dim] for call in calls)
            if len(set(sizes)) > 1:
                seen.setdefault(sizes, []).append((index, dim))
    space = SeenSpace()
    ranks = {index: len(leaf.shape) for index, leaf in enumerate(calls[0])}
    # The smaller one is the dimension; the larger one is derived from it.
    for sizes, places in sorted(seen.items(), key=lambda item: (sum(item[0]), item[1])):
        expression = _follows(sizes, space)
        if expression is None:
            expression = _name(places[0], ranks[places[0][0]], space.dims)
            space.dims[expression] = SeenDim(expression, sizes)
        space.places |= dict.fromkeys(places, expression)
    return space


def _follows(sizes: tuple[int, ...], space: SeenSpace) -> str | None:
    for name, dim in space.dims.items():
        ratio = sizes[0] // max(dim.sizes[0], 1)
        if ratio > 1 and all(size == ratio * base for size, base in zip(sizes, dim.sizes, strict=True)):
            return f"{ratio} * {name}"
    for (one, first), (two, second) in itertools.combinations(space.dims.items(), 2):
        if all(size == a * b for size, a, b in zip(sizes, first.sizes, second.sizes, strict=True)):
            return f"{one} * {two}"
    for name, dim in space.dims.items():
        distances = {size - base for size, base in zip(sizes, dim.sizes, strict=True)}
        if len(distances) == 1 and len(set(sizes)) >= _LEAST_FOR_SUM:
            return f"{name} + {distances.pop()}"
    return None


def _name(place: Place, rank: int, taken: dict[str, SeenDim]) -> str:
    _, dim = place
    names = (
        {0: "batch", 1: "length", 2: "length"}
        if rank <= 3
        else {0: "batch", rank - 2: "height", rank - 1: "width"}
    )
    if rank == 1:
        names = {0: "length"}
    name = names.get(dim, "size")
    return next(
        each
        for each in itertools.chain([name], (f"{name}{n}" for n in itertools.count(2)))
        if each not in taken
    )


def probes(space: SeenSpace, base: dict[str, int]) -> list[dict[str, int]]:
    """Legal shapes that were not all recorded: each dimension in turn at its ends and in between, the others at
    `base`.
    """
    found: list[dict[str, int]] = []
    for name, dim in space.dims.items():
        seen = sorted(set(dim.sizes))
        step = dim.multiple_of
        middle = (seen[0] + seen[-1]) // 2 // step * step
        # An odd size exposes code that only accepts even ones.
        between = [middle, middle + step] if not dim.listed else seen
        for size in dict.fromkeys([seen[0], seen[-1], *between]):
            if seen[0] <= size <= seen[-1]:
                found.append({**base, name: size})
    return found


def restrict(dim: SeenDim) -> bool:
    """Narrows a dimension of which some sizes turned out to be illegal; False if it cannot be narrowed further."""
    step = math.gcd(*dim.sizes)
    if step > dim.multiple_of and not dim.listed:
        dim.multiple_of = step
        return True
    if not dim.listed:
        dim.listed = True
        return True
    return False
