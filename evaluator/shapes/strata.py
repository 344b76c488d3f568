"""Named strata: shapes at which kernels that work or are fast elsewhere fail, each for its own reason.

A stratum maps a freely drawn size to the nearest one with its property (a prime, a power of two + 1), in every
dimension that allows it, or chooses shapes by hardware figures: the number of processors, the cache, the caps.
Each proposes some shapes, large ones first, and the first that stays within the caps is used.

An evaluation has room for :data:`evaluator.shapes.sampler.COUNTS` ``["adversarial"]`` of them. The most effective
ones are always included (:data:`ALWAYS`, and sizes of two of these shapes :data:`CROSSED`); the seed decides about
the others. Large shapes are among those others, because a float64 reference takes seconds there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, ends, is_legal, nearest, octaves

#: Base-2 logarithm of the product of all dimensions, attempt by attempt: large enough for several tiles in each
#: direction, small enough for a float64 reference.
_BUDGETS = (20, 16, 12, 8)
#: The same if one dimension, or all but one, are as large as allowed.
_WIDE_BUDGETS = (22, 18, 14, 10)
#: Base-2 logarithm of the size from which sizes are drawn.
_FROM = 4.0
#: Above this, primes are not searched.
_LARGEST_PRIME = 1 << 24
_TINY_ELEMENTS = 1 << 15
_TILES = (1, 8, 16, 32, 64, 128)
_WAVES = (1, 2, 3)
#: How many shapes' input sizes are requested at once when looking for one of a given size.
_GRID, _FINE = 17, 8

_Nearest = Callable[[IntegerDim, int], int | None]


@dataclass(frozen=True)
class Drawn:
    """A shape and why it was drawn: ``base``, ``neighbour``, ``prime`` and so on."""

    dims: Dims
    stratum: str


@dataclass(frozen=True)
class Limits:
    """What the device allows, and the hardware figures that kernels are tuned to.

    Attributes:
        fit: which of some shapes stay within the caps of memory and time.
        sizes: bytes of all inputs at each of some shapes; None if unknown without running the task.
        cap_bytes: of the inputs of a shape.
        cache_bytes: of the cache that a kernel's inputs may or may not fit in.
        processors: multiprocessors of a GPU, cores of a CPU.
    """

    fit: Callable[[list[Dims]], list[bool]]
    sizes: Callable[[list[Dims]], list[int | None]]
    cap_bytes: int
    cache_bytes: int
    processors: int


@dataclass(frozen=True)
class _Draw:
    """What a stratum draws from."""

    space: Space
    integers: dict[str, IntegerDim]
    choices: Dims
    generator: random.Random
    limits: Limits
    #: One of the widest dimensions: the long side of a tall shape, the short side of a short one.
    axis: str

    def sizes(self, budget: float, exponents: dict[str, float] | None = None) -> dict[str, int]:
        """Sizes whose product is at most 2 to the ``budget``, as far as the lower ends allow.

        Log-uniform if no logarithms are given, from 16 on if a dimension gets so far: small sizes have their own
        strata.
        """
        lows = {name: octaves(dim)[0] for name, dim in self.integers.items()}
        if exponents is None:
            highs = {name: octaves(dim)[1] for name, dim in self.integers.items()}
            exponents = {
                name: self.generator.uniform(min(max(lows[name], _FROM), high), high)
                for name, high in highs.items()
            }
        least, wanted = sum(lows.values()), sum(exponents.values())
        share = min(1.0, max(budget - least, 0.0) / (wanted - least)) if wanted > least else 1.0
        return {
            name: nearest(dim, 2 ** (lows[name] + (exponents[name] - lows[name]) * share))
            for name, dim in self.integers.items()
        }

    def shape(self, sizes: dict[str, int]) -> Dims:
        """A shape in the order of the space."""
        return {name: sizes[name] if name in sizes else self.choices[name] for name in self.space}


@dataclass(frozen=True)
class Stratum:
    """Proposes shapes of one kind, the best first; none if the space has none."""

    name: str
    propose: Callable[[_Draw], list[Dims]]


# -- sizes with a property -------------------------------------------------------------------------------------


def _with(property_of: _Nearest) -> Callable[[_Draw], list[Dims]]:
    """Shapes in which every dimension that can has the property; the others stay as drawn."""

    def propose(draw: _Draw) -> list[Dims]:
        shapes = []
        for budget in _BUDGETS:
            sizes = draw.sizes(budget)
            found = {name: property_of(dim, sizes[name]) for name, dim in draw.integers.items()}
            special = {name: value for name, value in found.items() if value is not None}
            if special:
                shapes.append(draw.shape({**sizes, **special}))
        return shapes

    return propose


def _beside_power(offset: int, least: int) -> _Nearest:
    """``2^k + offset`` with 2^k at least ``least``.

    If sizes have steps, the number of steps is a power, and ±1 are steps.
    """

    def find(dim: IntegerDim, target: int) -> int | None:
        step = dim.multiple_of if abs(offset) <= 1 else 1
        values = ((1 << power) * step + offset * step for power in range(least.bit_length() - 1, 40))
        legal = [value for value in values if is_legal(dim, value)]
        return min(legal, key=lambda value: abs(math.log(value / max(target, 1))), default=None)

    return find


def _outwards(middle: int, most: int) -> Iterator[int]:
    yield middle
    for distance in range(1, most):
        yield middle - distance
        yield middle + distance


def is_prime(number: int) -> bool:
    """By trial division; sizes are small."""
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def nearest_prime(dim: IntegerDim, target: int) -> int | None:
    """The legal size nearest to ``target`` whose number of steps is a prime, if there is one not far away."""
    step = dim.multiple_of
    near = (n for n in _outwards(target // step, 200) if 2 < n < _LARGEST_PRIME and is_legal(dim, n * step))
    return next((n * step for n in near if is_prime(n)), None)


def _odd_multiple(tier: int) -> _Nearest:
    def find(dim: IntegerDim, target: int) -> int | None:
        step = dim.multiple_of
        near = (n * step for n in _outwards(target // step, 4 * tier))
        return next((v for v in near if v > 0 and is_legal(dim, v) and v % (2 * tier) == tier), None)

    return find


def _exactly(value: int) -> Callable[[_Draw], list[Dims]]:
    """All dimensions that can have the value, or one of them; the others as drawn, or as small as allowed."""

    def propose(draw: _Draw) -> list[Dims]:
        able = [name for name, dim in draw.integers.items() if is_legal(dim, value)]
        if not able:
            return []
        one = draw.generator.choice(able)
        alone = [draw.shape({**draw.sizes(budget), one: value}) for budget in _BUDGETS]
        together = draw.shape({name: nearest(dim, value) for name, dim in draw.integers.items()})
        shapes = alone if not value or draw.generator.random() < 0.5 else [together, *alone]
        return [dims for dims in shapes if dims not in _lowest(draw)]

    return propose


def _lowest(draw: _Draw) -> list[Dims]:
    return [draw.shape({name: ends(dim)[0] for name, dim in draw.integers.items()})]


def _tiny(draw: _Draw) -> list[Dims]:
    most = math.log2(_TINY_ELEMENTS)
    shapes = [draw.sizes(draw.generator.uniform(most / 2, most)) for _ in _BUDGETS]
    return [draw.shape(sizes) for sizes in shapes if math.prod(sizes.values()) <= _TINY_ELEMENTS]


# -- extents ---------------------------------------------------------------------------------------------------


def _tall(draw: _Draw) -> list[Dims]:
    exponents = {name: octaves(dim)[name == draw.axis] for name, dim in draw.integers.items()}
    return [draw.shape(draw.sizes(budget, exponents)) for budget in _WIDE_BUDGETS]


def _short(draw: _Draw) -> list[Dims]:
    if len(draw.integers) < 2:
        return []
    exponents = {name: octaves(dim)[name != draw.axis] for name, dim in draw.integers.items()}
    return [draw.shape(draw.sizes(budget, exponents)) for budget in _WIDE_BUDGETS]


def _wave(beside: int) -> Callable[[_Draw], list[Dims]]:
    """Rows or tiles whose number just fills the last round over the processors, or is one more or one less."""

    def propose(draw: _Draw) -> list[Dims]:
        counts = [(waves * draw.limits.processors + beside, tile) for waves in _WAVES for tile in _TILES]
        values = {
            name: [n * tile for n, tile in counts if n > 1 and is_legal(dim, n * tile)]
            for name, dim in draw.integers.items()
        }
        able = [name for name, found in values.items() if found]
        if not able:
            return []
        name = draw.generator.choice(able)
        picked = sorted(draw.generator.sample(values[name], min(2, len(values[name]))), reverse=True)
        return [
            draw.shape({**draw.sizes(budget - math.log2(value)), name: value})
            for value in picked
            for budget in _BUDGETS[::2]
        ]

    return propose


def _of_bytes(draw: _Draw, wanted: list[float]) -> list[Dims]:
    """Shapes whose inputs have nearly, and at most, these bytes, found on a path from the smallest to the largest
    shape.

    All dimensions grow along it, each at its own rate, so every size is somewhere on it. It takes two requests to
    the task.
    """
    paces = {name: draw.generator.choice((0.5, 1.0, 2.0)) for name in draw.integers}

    def at(place: float) -> Dims:
        sizes = {}
        for name, dim in draw.integers.items():
            low, high = octaves(dim)
            sizes[name] = nearest(dim, 2 ** (low + (high - low) * place ** paces[name]))
        return draw.shape(sizes)

    def before(places: list[float], most: list[float]) -> list[float | None]:
        known = draw.limits.sizes([at(place) for place in places])
        pairs = list(zip(places, known, strict=True))
        return [
            max((place for place, size in pairs if size is not None and size <= limit), default=None)
            for limit in most
        ]

    step = 1 / (_GRID - 1)
    starts = before([number * step for number in range(_GRID)], wanted)
    below = {start for start in starts if start is not None}
    fine = sorted({start + step * n / _FINE for start in below - {1.0} for n in range(_FINE)} | below)
    found = before(fine, wanted) if fine else []
    return [at(place) for place in found if place is not None]


def _cache(share: float) -> Callable[[_Draw], list[Dims]]:
    def propose(draw: _Draw) -> list[Dims]:
        wanted = share * draw.limits.cache_bytes
        if wanted > draw.limits.cap_bytes:
            return []
        shapes = _of_bytes(draw, [wanted])
        # A space may end below it, or begin above it.
        sizes = draw.limits.sizes(shapes) if shapes else []
        return [dims for dims, size in zip(shapes, sizes, strict=True) if size and size > wanted / 2]

    return propose


def _large(draw: _Draw) -> list[Dims]:
    return _of_bytes(draw, [draw.limits.cap_bytes / (1 << halvings) for halvings in range(0, 8, 2)])


_CROSSES = ("prime", "power of two + 1")
CROSSED = "sizes crossed"
ALWAYS = ("lowest", *_CROSSES, "tall and skinny", "short and fat")
STRATA: dict[str, Stratum] = {
    stratum.name: stratum
    for stratum in (
        Stratum("lowest", _lowest),
        Stratum("prime", _with(nearest_prime)),
        Stratum("power of two + 1", _with(_beside_power(1, 4))),
        Stratum("power of two - 1", _with(_beside_power(-1, 4))),
        Stratum("power of two", _with(_beside_power(0, 1))),
        *(
            Stratum(
                f"power of two {'+' if sign > 0 else '-'} {off}", _with(_beside_power(sign * off, 4 * off))
            )
            for off in (8, 16)
            for sign in (1, -1)
        ),
        *(Stratum(f"odd multiple of {tier}", _with(_odd_multiple(tier))) for tier in (2, 4, 8, 16)),
        *(Stratum(word, _exactly(value)) for value, word in enumerate(("zero", "one", "two", "three"))),
        Stratum("tiny", _tiny),
        Stratum("tall and skinny", _tall),
        Stratum("short and fat", _short),
        Stratum("full waves - 1", _wave(-1)),
        Stratum("full waves", _wave(0)),
        Stratum("full waves + 1", _wave(1)),
        Stratum("half the cache", _cache(0.5)),
        Stratum("the cache", _cache(1.0)),
        Stratum("twice the cache", _cache(2.0)),
        Stratum("large", _large),
    )
}


def draw_strata(space: Space, seed: str, limits: Limits, most: int) -> list[Drawn]:
    """At most ``most`` shapes, each of another stratum while there are others: the fixed ones, then in random
    order.

    Args:
        space: with at least one integer dimension.
        seed: same seed, same shapes.
        limits: of the device.
        most: how many.
    """
    generator = random.Random(f"strata:{seed}")
    others = [name for name in STRATA if name not in ALWAYS]
    generator.shuffle(others)
    turn, axis = generator.randrange(1 << 16), _axis(space, generator)
    chosen: list[Drawn] = []
    # A small space has few strata: then each gets a second shape.
    order = [*ALWAYS, CROSSED, *others, *ALWAYS, *others]
    while order and len(chosen) < most:
        count = most - len(chosen) if chosen else min(len(ALWAYS), most)
        names, order = order[:count], order[count:]
        proposals = [
            _crossed(space, chosen, generator)
            if name == CROSSED
            else _propose(space, name, generator, limits, turn + number, axis)
            for number, name in enumerate(names)
        ]
        turn += len(names)
        for name, dims in zip(names, _first_that_fits(proposals, limits), strict=True):
            if dims is not None and len(chosen) < most and all(dims != other.dims for other in chosen):
                # When shapes are judged in turn, errors show earlier there than after the long ones.
                place = 1 + len(_CROSSES) if name == CROSSED else len(chosen)
                chosen.insert(place, Drawn(dims, name))
    return chosen


def _crossed(space: Space, chosen: list[Drawn], generator: random.Random) -> list[Dims]:
    """Two shapes that each have one size of the other.

    A candidate that caches by only some of the sizes uses the wrong entry.
    """
    seen = [drawn.dims for drawn in chosen if drawn.stratum in _CROSSES]
    integers = [name for name, dim in space.items() if isinstance(dim, IntegerDim)]
    if len(seen) < 2 or len(integers) < 2:
        return []
    one, other = generator.sample(seen, 2)
    crossed = [{**one, name: other[name]} for name in generator.sample(integers, len(integers))]
    return [dims for dims in crossed if dims not in seen]


def _axis(space: Space, generator: random.Random) -> str:
    spans = {
        name: octaves(dim)[1] - octaves(dim)[0] for name, dim in space.items() if isinstance(dim, IntegerDim)
    }
    return generator.choice([name for name, span in spans.items() if span >= max(spans.values()) / 2])


def _propose(
    space: Space, name: str, generator: random.Random, limits: Limits, turn: int, axis: str
) -> list[Dims]:
    """Choices alternate, so that a few shapes include each of their values."""
    integers = {name: dim for name, dim in space.items() if isinstance(dim, IntegerDim)}
    choices: Dims = {
        name: dim.values[turn % len(dim.values)] for name, dim in space.items() if isinstance(dim, ChoiceDim)
    }
    return STRATA[name].propose(_Draw(space, integers, choices, generator, limits, axis))


def _first_that_fits(proposals: list[list[Dims]], limits: Limits) -> list[Dims | None]:
    """The first shape of each list that stays within the caps; one request for all lists."""
    found: list[Dims | None] = [None] * len(proposals)
    for attempt in range(max(map(len, proposals), default=0)):
        waiting = [n for n, shapes in enumerate(proposals) if found[n] is None and attempt < len(shapes)]
        asked = [proposals[n][attempt] for n in waiting]
        for n, dims, fitting in zip(waiting, asked, limits.fit(asked) if asked else [], strict=True):
            if fitting:
                found[n] = dims
    return found
