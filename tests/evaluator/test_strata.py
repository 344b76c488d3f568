"""Strata of shapes at which kernels fail: each is what its name says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from evaluator.shapes.sampler import COUNTS
from evaluator.shapes.space import Dims, IntegerDim, Space, check_shape
from evaluator.shapes.strata import CROSSED, STRATA, Limits, draw_strata, is_prime
from tests.evaluator.test_sampler import _CAP_BYTES, LIMITS, SEEDS, SPACE, SPACES, fit, sizes


def is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


#: What each size of a shape is that the stratum can give it; `steps` is the size in steps of its dimension.
PROPERTIES: dict[str, Callable[[int, int], bool]] = {
    "prime": lambda size, steps: is_prime(steps),
    "power of two": lambda size, steps: is_power(size),
    "power of two + 1": lambda size, steps: is_power(steps - 1),
    "power of two - 1": lambda size, steps: is_power(steps + 1),
    **{
        f"power of two {sign} {off}": lambda size, steps, d=(off if sign == "+" else -off): is_power(size - d)
        for sign in "+-"
        for off in (8, 16)
    },
    **{f"odd multiple of {t}": lambda size, steps, t=t: size % (2 * t) == t for t in (2, 4, 8, 16)},
    **{word: lambda size, steps, n=n: size == n for n, word in enumerate(("zero", "one", "two", "three"))},
}


@pytest.mark.parametrize("name", SPACES)
def test_strata_are_what_their_names_say(name: str) -> None:
    space = SPACES[name]
    integers = {n: dim for n, dim in space.items() if isinstance(dim, IntegerDim)}
    known: set[str] = set()
    for seed in SEEDS[:20]:
        shapes = [one for one in draw_strata(space, seed, LIMITS, len(STRATA)) if one.stratum != CROSSED]
        known |= {one.stratum for one in shapes}
        for one in shapes:
            assert check_shape(space, one.dims) == one.dims
            values = {n: int(one.dims[n]) for n in integers}
            size = sizes([one.dims])[0] or 0
            if one.stratum in PROPERTIES:
                having = [
                    n for n, v in values.items() if PROPERTIES[one.stratum](v, v // integers[n].multiple_of)
                ]
                assert having, one
            elif one.stratum == "lowest":
                assert all(v == integers[n].low for n, v in values.items())
            elif one.stratum == "tiny":
                assert math.prod(values.values()) <= 1 << 15
            elif one.stratum == "tall and skinny":
                high = [n for n, v in values.items() if v == integers[n].high]
                assert high and all(v == max(integers[n].low, 1) for n, v in values.items() if n not in high)
            elif one.stratum == "short and fat":
                assert any(v == max(integers[n].low, 1) for n, v in values.items())
            elif one.stratum.startswith("full waves"):
                beside = int(one.stratum.removeprefix("full waves").replace(" ", "") or "0")
                counts = [
                    (waves * 12 + beside) * tile for waves in (1, 2, 3) for tile in (1, 8, 16, 32, 64, 128)
                ]
                assert any(v in counts for v in values.values()), one
            elif one.stratum == "large":
                assert min(_CAP_BYTES, sizes([biggest(space)])[0] or 0) / 2 < size <= _CAP_BYTES
            else:
                share = {"half the cache": 0.5, "the cache": 1, "twice the cache": 2}[one.stratum]
                assert share / 2 < size / LIMITS.cache_bytes <= share
    # The largest vector is its tallest.
    assert known == set(STRATA) - not_in(space) - ({"large"} if len(space) == 1 else set())


def biggest(space: Space) -> Dims:
    return {n: dim.high if isinstance(dim, IntegerDim) else dim.default for n, dim in space.items()}


def not_in(space: Space) -> set[str]:
    """What the spaces above have none of."""
    if len(space) == 1:
        return {"zero", "short and fat"}
    return set() if any(isinstance(dim, IntegerDim) and dim.low == 0 for dim in space.values()) else {"zero"}


@pytest.mark.parametrize("name", SPACES)
def test_draws_rotate_over_all_strata_and_always_hold_what_finds_most(name: str) -> None:
    space = SPACES[name]
    seen: set[str] = set()
    for number in range(60):
        shapes = draw_strata(space, str(number), LIMITS, COUNTS["adversarial"])
        names = [one.stratum for one in shapes]
        assert len(set(names)) == len(names) == COUNTS["adversarial"]
        assert {"lowest", "prime", "power of two + 1", "tall and skinny"} <= set(names)
        assert len(space) == 1 or "short and fat" in names
        prime, power = (
            next(one.dims for one in shapes if one.stratum == n) for n in ("prime", "power of two + 1")
        )
        differing = [n for n in space if prime[n] != power[n] and isinstance(space[n], IntegerDim)]
        assert (CROSSED in names) is (len(differing) > 1)
        seen |= set(names) - {CROSSED}
    # Its largest vector is its tallest.
    assert seen == set(STRATA) - not_in(space) - ({"large"} if len(space) == 1 else set())


def test_a_shape_has_sizes_of_two_others_and_is_neither() -> None:
    for seed in SEEDS[:20]:
        shapes = {one.stratum: one.dims for one in draw_strata(SPACE, seed, LIMITS, 8)}
        crossed, prime, power = shapes[CROSSED], shapes["prime"], shapes["power of two + 1"]
        assert crossed not in (prime, power)
        assert {crossed["rows"], crossed["cols"]} in (
            {prime["rows"], power["cols"]},
            {power["rows"], prime["cols"]},
        )


def test_dtypes_take_turns() -> None:
    for seed in SEEDS[:10]:
        dtypes = [one.dims["dtype"] for one in draw_strata(SPACE, seed, LIMITS, 8)]
        assert 3 <= dtypes.count("bfloat16") <= 5


def test_an_empty_input_is_drawn_only_where_the_range_has_it() -> None:
    for name, space in SPACES.items():
        empty = [
            one for seed in SEEDS for one in draw_strata(space, seed, LIMITS, 8) if 0 in one.dims.values()
        ]
        assert bool(empty) is (name in ("vector", "ragged"))


def test_shapes_of_a_size_cost_few_questions() -> None:
    asked: list[int] = []

    def counted(shapes: list[Dims]) -> list[int | None]:
        asked.append(len(shapes))
        return sizes(shapes)

    draw_strata(SPACE, "seed", Limits(fit, counted, _CAP_BYTES, 1 << 20, 12), len(STRATA) + 1)
    # Four strata go by size, each asks twice and looks at what it found.
    assert len(asked) <= 4 * 3
    assert max(asked) <= 40


def test_unknown_sizes_leave_out_what_needs_them() -> None:
    blind = Limits(fit, lambda shapes: [None] * len(shapes), _CAP_BYTES, 1 << 20, 12)
    shapes = draw_strata(SPACE, "seed", blind, len(STRATA))
    names = {one.stratum for one in shapes} - {CROSSED}
    assert not names & {"large", "the cache", "half the cache", "twice the cache"}
    assert len(names) == len(STRATA) - 5
    assert len(draw_strata(SPACE, "seed", blind, 8)) == 8
