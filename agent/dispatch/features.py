"""The features a dispatcher may test: integers that cost tens of nanoseconds and are equal in the fit and in generated code.

They are sizes, products of sizes, divisibility (vector loads and TMA need 16 bytes), the number of tiles, the occupancy of the
last wave of tiles over the multiprocessors, and dtypes. In measured GEMM data, alignment and wave phase were the two families
that paid (W. Joubert et al., CUG 2022). `bit_length` of a size is not a feature, since a tree can split it only where it can
split the size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from agent.dispatch.domain import Domain, Expression, dims_key

_TIERS = (2, 4, 8, 16, 32, 64, 128)
_TILES = (64, 128)
#: Kinds, the most readable first; this order breaks ties between equally good splits.
KINDS = ("dtype", "size", "elements", "product", "divisible", "tiles", "fill")


@dataclass(frozen=True)
class Point:
    """The parts of a call that features read.

    Attributes:
        dims: value of each dimension.
        dtypes: dtypes of the tensor inputs in the order of the call; empty if unknown.
        elements: total elements of all tensor inputs; None if unknown.
    """

    dims: Mapping[str, Any]
    dtypes: tuple[str, ...] = ()
    elements: int | None = None


@dataclass(frozen=True)
class Feature:
    """An integer computed from a call.

    Attributes:
        kind: one of KINDS.
        dims: the dimensions that it reads.
        number: divisor for `divisible`, tile size for `tiles` and `fill`, index of the input for `dtype`.
        processors: number of multiprocessors, for `fill`.
        dtype: the dtype to compare with, for `dtype`.
        axes: for `elements`: the axes of each tensor input; empty if they do not follow from the dimensions.
    """

    kind: str
    dims: tuple[str, ...] = ()
    number: int = 0
    processors: int = 0
    dtype: str = ""
    axes: tuple[tuple[Expression, ...], ...] = ()

    @property
    def is_condition(self) -> bool:
        """Whether the value is only 1 or 0 and a split needs no limit."""
        return self.kind in ("dtype", "divisible")

    def value(self, point: Point) -> int:
        """The value for a call; a condition is 1 if it holds and 0 if not."""
        sizes = [int(point.dims[name]) for name in self.dims]
        match self.kind:
            case "dtype":
                return int(point.dtypes[self.number] == self.dtype)
            case "divisible":
                return int(sizes[0] % self.number == 0)
            case "elements":
                return (
                    sum(_count(axes, point.dims) for axes in self.axes)
                    if self.axes
                    else int(point.elements or 0)
                )
            case "tiles":
                return _tiles(sizes, self.number)
            case "fill":
                tiles = _tiles(sizes, self.number)
                return 100 * tiles // (max(-(-tiles // self.processors), 1) * self.processors)
        product = 1
        for size in sizes:
            product *= size
        return product

    def condition(self, limit: int, names: Mapping[str, str], places: Sequence[str]) -> str:
        """The test "at most `limit`" (for conditions, "it holds") as Python.

        Args:
            limit: ignored by conditions.
            names: local variable of each dimension.
            places: expression of each tensor input.
        """
        local = [names[name] for name in self.dims]
        match self.kind:
            case "dtype":
                return f"{places[self.number]}.dtype is torch.{self.dtype}"
            case "divisible":
                return f"{local[0]} % {self.number} == 0"
            case "elements":
                counts = _elements_text(self.axes, names) or " + ".join(
                    f"{place}.numel()" for place in places
                )
                return f"{counts} <= {limit}"
            case "tiles":
                return f"{_tiles_text(local, self.number)} <= {limit}"
            case "fill":
                tiles = _tiles_text(local, self.number)
                rounds = f"max(-(-({tiles}) // {self.processors}), 1)"
                return f"100 * {tiles} < {(limit + 1) * self.processors} * {rounds}"
        return f"{' * '.join(local)} <= {limit}"

    def words(self, limit: int, holds: bool) -> str:
        """The same test in words; negated unless `holds`."""
        of = " x ".join(self.dims)
        match self.kind:
            case "dtype":
                return f"input {self.number + 1} is {'' if holds else 'not '}{self.dtype}"
            case "divisible":
                return f"{of} is {'' if holds else 'not '}a multiple of {self.number}"
            case "elements":
                of = "input elements"
            case "tiles":
                of = f"tiles of {self.number} over {of}"
            case "fill":
                side = "at most" if holds else "more than"
                return f"the last round of tiles of {self.number} over {of} leaves {self.processors} multiprocessors {side} {limit}% busy"
        return f"{of} {'<=' if holds else '>'} {limit}"


def features_of(
    domain: Domain, dims: Iterable[str], points: Sequence[Point], processors: int
) -> list[Feature]:
    """Every feature that separates at least two of `points`, the most readable first.

    Of features that order the points identically, only the first is kept: a tree can split them only at the same places.

    Args:
        domain: what the members were judged on.
        dims: the dimensions that the dispatcher has as local variables.
        points: the calls that were timed.
        processors: number of multiprocessors of the GPU; 0 for a CPU.
    """
    known = sorted(name for name in dims if all(type(point.dims.get(name)) is int for point in points))
    found = [Feature("size", (name,)) for name in known]
    if all(len(point.dtypes) == len(domain.tensors) for point in points):
        found += [
            Feature("dtype", number=index, dtype=dtype)
            for index in range(len(domain.tensors))
            for dtype in sorted({point.dtypes[index] for point in points})
        ]
    axes = tuple(tensor.axes for tensor in domain.tensors if tensor.axes is not None)
    reads = {dim for one in axes for axis in one for dim in axis.dims}
    if len(axes) == len(domain.tensors) and reads <= set(known):
        found.append(Feature("elements", axes=axes))
    elif all(point.elements is not None for point in points):
        found.append(Feature("elements"))
    found += [Feature("product", pair) for pair in combinations(known, 2)]
    found += [Feature("divisible", (name,), tier) for name in known for tier in _TIERS]
    if processors:
        groups = [*((name,) for name in known), *combinations(known, 2)]
        for group in groups:
            for tile in _TILES if len(group) == 2 else (1, *_TILES):
                found += [Feature("tiles", group, tile), Feature("fill", group, tile, processors)]
    telling: dict[tuple[int, ...], Feature] = {}
    for feature in sorted(found, key=lambda one: KINDS.index(one.kind)):
        values = tuple(feature.value(point) for point in points)
        order = {value: rank for rank, value in enumerate(sorted(set(values)))}
        if len(order) > 1:
            telling.setdefault(tuple(order[value] for value in values), feature)
    return list(telling.values())


def points_of(shapes: Iterable[Mapping[str, Any]], domain: Domain | None) -> list[Point]:
    """The calls at these shapes, with the dtypes and element counts probed there."""
    if domain is None:
        return [Point(dims) for dims in shapes]
    found = []
    for dims in shapes:
        key = dims_key(dims)
        found.append(Point(dims, domain.dtypes_at.get(key, ()), domain.elements.get(key)))
    return found


def _count(axes: Sequence[Expression], dims: Mapping[str, Any]) -> int:
    count = 1
    for axis in axes:
        size = axis.factor if axis.dims else 0
        for name in axis.dims:
            size *= int(dims[name])
        count *= size + axis.offset
    return count


def _elements_text(tensors: Sequence[tuple[Expression, ...]], names: Mapping[str, str]) -> str:
    texts = [" * ".join(_factors(axes, names)) or "1" for axes in tensors]
    parts = []
    for text in dict.fromkeys(texts):
        times = texts.count(text)
        parts.append(text if times == 1 else f"{times} * {text}")
    return " + ".join(parts)


def _factors(axes: Sequence[Expression], names: Mapping[str, str]) -> list[str]:
    factors = []
    for axis in axes:
        text = Expression(axis.factor, tuple(names[dim] for dim in axis.dims), axis.offset).text()
        if text != "1":
            factors.append(f"({text})" if axis.dims and axis.offset else text)
    return factors


def _tiles(sizes: Sequence[int], tile: int) -> int:
    tiles = 1
    for size in sizes:
        tiles *= -(-size // tile)
    return tiles


def _tiles_text(local: Sequence[str], tile: int) -> str:
    return " * ".join(local if tile == 1 else [f"-(-{name} // {tile})" for name in local])
