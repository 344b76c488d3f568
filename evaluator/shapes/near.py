"""Sizes near a task's own, at which a module of this configuration is also called."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, ends, is_legal, nearest
from evaluator.shapes.strata import nearest_prime

#: Octaves below and above its own size within which a dimension varies.
_BELOW, _ABOVE = 3, 1
#: How many dimensions differ from their own size in one shape: mostly one or two, so that shapes keep a realistic
#: volume; 0 stands for all.
_HOW_MANY = (1, 1, 2, 2, 0)
_TIERS = (1, 2, 4, 8, 16, 64, 128)
#: Share of sizes that are awkward on purpose: one off a size on a tier, or a prime.
_BESIDE, _PRIME = 0.25, 0.1
#: Largest first dimension of a small shape, and largest log of the product of the other varying ones.
_SMALL_FIRST, _SMALL = (1, 1, 1, 2, 4, 7, 16), 18.0


class NearShapes:
    """An endless series of shapes for one seed.

    Args:
        space: the task's dimensions.
        varying: those of them that vary; at least one integer.
        own: the task's own shape; the other dimensions keep its sizes.
        seed: same seed, same shapes.
    """

    def __init__(self, space: Space, varying: Sequence[str], own: Dims, seed: str) -> None:
        self._own = own
        self._random = random.Random(seed)
        self._choices = {n: dim for n in varying if isinstance(dim := space[n], ChoiceDim)}
        self._sizes = {n: dim for n in varying if isinstance(dim := space[n], IntegerDim)}
        beside = {name: _beside_own(dim) for name, dim in self._sizes.items()}
        self._ranges = {name: dim for name, dim in beside.items() if dim.low < dim.high}

    def near(self) -> Iterator[Dims]:
        """One or two dimensions, sometimes all, at 1/8 to 2 times their own size, log-uniform and within the legal
        range.
        """
        names = [*self._ranges, *(name for name, dim in self._choices.items() if len(dim.values) > 1)]
        while names:
            count = min(self._random.choice(_HOW_MANY) or len(names), len(names))
            yield self._own | {name: self._value(name) for name in self._random.sample(names, count)}

    def small(self) -> Iterator[Dims]:
        """The first dimension, which is the batch or the rows, is 1 or slightly larger.

        The others are so small that launches dominate.
        """
        first = next(iter(self._sizes))
        while True:
            sizes = {name: max(int(self._own[name]), 1) for name in self._sizes if name != first}
            wanted = sum(math.log2(size) for size in sizes.values())
            share = min(1.0, _SMALL / wanted) if wanted else 1.0
            share *= self._random.choice((1.0, self._random.uniform(0.5, 1.0)))
            shape = {name: nearest(self._sizes[name], size**share) for name, size in sizes.items()}
            rows = min(self._random.choice(_SMALL_FIRST), max(int(self._own[first]), 1))
            yield self._own | {first: nearest(self._sizes[first], rows)} | shape

    def _value(self, name: str) -> int | float | str | bool:
        if name in self._choices:
            return self._random.choice(self._choices[name].values)
        dim, kind = self._ranges[name], self._random.random()
        size = 2 ** self._random.uniform(math.log2(dim.low), math.log2(dim.high))
        value = nearest(dim, size, self._random.choice(_TIERS))
        if kind < _BESIDE:
            moved = [value + sign * dim.multiple_of for sign in self._random.sample((-1, 1), 2)]
            return next((v for v in moved if is_legal(dim, v)), value)
        if kind < _BESIDE + _PRIME:
            return nearest_prime(dim, value) or value
        return value


def _beside_own(dim: IntegerDim) -> IntegerDim:
    """The legal sizes from 1/8 to 2 times a dimension's own; only its own if that is zero."""
    low, high = ends(dim)
    least = max(low, -(-dim.default // (1 << _BELOW)), min(1, dim.default))
    step = dim.multiple_of
    most = min(high, (dim.default << _ABOVE) // step * step)
    return IntegerDim(-(-least // step) * step, most, step, dim.default)
