"""Draws shapes: log-uniform base points with alignment tiers and neighbours, and the strata that break kernels.

Uniform sampling would put nearly every point at the large end. Neighbours of a base point (-1, +1, +8) show the
saw-tooth of alignment and tile edges; a whole neighbourhood stays in one split, or the held-out figures would leak.
Thin: the strata that need layouts, values or more than 2^31 elements are not drawn yet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, defaults

SPLITS = ("visible", "validation", "held_out", "adversarial")
#: Shapes per split. Few, because each timed one costs a compilation of every baseline for exactly this shape.
COUNTS = {"visible": 6, "validation": 4, "held_out": 6, "adversarial": 8}
_TIERS = (1, 2, 4, 8, 16, 64, 128)
_NEIGHBOURS = (-1, 1, 8)
_ATTEMPTS = 40
#: Proposals that are probed at once, at least.
_ASKED = 4

Fits = Callable[[list[Dims]], list[bool]]


def _legal(dim: IntegerDim, value: float, tier: int = 1) -> int:
    """The legal value nearest to ``value`` on the alignment tier, if the range allows that tier."""
    step = math.lcm(dim.multiple_of, tier) if dim.high >= math.lcm(dim.multiple_of, tier) else dim.multiple_of
    first, last = -(-dim.low // step) * step, dim.high // step * step
    if first > last:
        step = dim.multiple_of
        first, last = -(-dim.low // step) * step, dim.high // step * step
    return int(min(max(round(value / step) * step, first), last))


def _base_point(space: Space, generator: random.Random) -> Dims:
    shape: Dims = {}
    for name, dim in space.items():
        if isinstance(dim, ChoiceDim):
            shape[name] = generator.choice(dim.values)
        else:
            low, high = math.log2(max(dim.low, 1)), math.log2(max(dim.high, 1))
            shape[name] = _legal(dim, 2 ** generator.uniform(low, high), generator.choice(_TIERS))
    return shape


def _neighbour(space: Space, base: Dims, generator: random.Random) -> Dims:
    integers = [name for name, dim in space.items() if isinstance(dim, IntegerDim)]
    if not integers:
        return base
    name = generator.choice(integers)
    dim = space[name]
    assert isinstance(dim, IntegerDim)
    return {**base, name: _legal(dim, int(base[name]) + generator.choice(_NEIGHBOURS) * dim.multiple_of)}


def _strata(space: Space, generator: random.Random) -> list[Dims]:
    """Shapes that find wrong kernels: smallest, all ones, primes, powers of two and beside them, tall and short."""
    integers = {name: dim for name, dim in space.items() if isinstance(dim, IntegerDim)}
    choices = {
        name: generator.choice(dim.values) for name, dim in space.items() if isinstance(dim, ChoiceDim)
    }
    if not integers:
        return [{**defaults(space), **choices}]

    def shape(value: Callable[[str, IntegerDim], float]) -> Dims:
        return {**choices, **{name: _legal(dim, value(name, dim)) for name, dim in integers.items()}}

    names = list(integers)
    tall = generator.choice(names)
    primes = (7, 13, 127, 1009, 4093)
    return [
        shape(lambda name, dim: dim.low),
        shape(lambda name, dim: 1),
        shape(lambda name, dim: generator.choice(primes[:3])),
        shape(lambda name, dim: generator.choice(primes[2:])),
        shape(lambda name, dim: 2 ** generator.randint(4, 8) + 1),
        shape(lambda name, dim: 2 ** generator.randint(4, 10) - 1),
        shape(lambda name, dim: dim.high if name == tall else dim.low),
        shape(lambda name, dim: dim.low if name == tall else dim.high),
        shape(lambda name, dim: 2 ** generator.randint(3, 8)),
        shape(lambda name, dim: 3),
    ]


def sample(space: Space, split: str, seed: str, fits: Fits, count: int | None = None) -> list[Dims]:
    """Shapes of one split.

    Args:
        space: the task's dimensions.
        split: one of SPLITS.
        seed: same seed, same shapes; held-out shapes get a seed nobody has seen.
        fits: tells which of some shapes stay within the caps of memory and time.
        count: how many at most; by default :data:`COUNTS`.
    """
    wanted = COUNTS[split] if count is None else count
    if not any(isinstance(dim, IntegerDim) for dim in space.values()):
        return _choices_only(space, wanted)
    generator = random.Random(f"{split}:{seed}")
    proposals = _strata(space, generator) if split == "adversarial" else []
    for _ in range(_ATTEMPTS * wanted if split != "adversarial" else 0):
        base = _base_point(space, generator)
        proposals.append(base)
        if generator.random() < 0.25:
            proposals.append(_neighbour(space, base, generator))
    if split == "visible":
        proposals.insert(0, defaults(space))
    chosen: list[Dims] = []
    while proposals and len(chosen) < wanted:
        # No more than may be needed, since each is probed.
        few = max(wanted - len(chosen), _ASKED)
        batch, proposals = proposals[:few], proposals[few:]
        for dims, fitting in zip(batch, fits(batch), strict=True):
            if fitting and dims not in chosen and len(chosen) < wanted:
                chosen.append(dims)
    return chosen


def _choices_only(space: Space, wanted: int) -> list[Dims]:
    """A task without integer dimensions has one shape per combination of choices, the same in every split."""
    combinations: list[Dims] = [{}]
    for name, dim in space.items():
        assert isinstance(dim, ChoiceDim)
        combinations = [{**dims, name: value} for dims in combinations for value in dim.values]
    return combinations[:wanted]
