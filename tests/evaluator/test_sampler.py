"""Shapes: legal, reproducible from their seed, what people run, and splits apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evaluator.errors import RoleFailure
from evaluator.roles.module_host import _fields_of
from evaluator.shapes.apart import are_near
from evaluator.shapes.inference.declaring import declared
from evaluator.shapes.inference.result import refused
from evaluator.shapes.sampler import COUNTS, NEAR, SMALL, SPLITS, Sampler
from evaluator.shapes.space import (
    ChoiceDim,
    Dims,
    IntegerDim,
    Space,
    check_shape,
    defaults,
    parse_space,
    varying,
)
from evaluator.shapes.strata import Drawn, Limits, is_prime
from kernelbench_tasks import Dim

SPACE: Space = {
    "rows": IntegerDim(1, 16384, 1, 512),
    "cols": IntegerDim(8, 8192, 2, 1024),
    "dtype": ChoiceDim(("float32", "bfloat16"), "float32"),
}
#: Spaces like those of the catalogue: with steps, small dimensions beside large ones, and one dimension alone.
SPACES: dict[str, Space] = {
    "matrix": SPACE,
    "attention": {
        "batch": IntegerDim(1, 8, 1, 2),
        "heads": IntegerDim(1, 16, 1, 8),
        "length": IntegerDim(1, 4096, 1, 512),
        "width": IntegerDim(16, 128, 16, 64),
    },
    "vector": {"elements": IntegerDim(0, 1 << 20, 1, 1000)},
    "ragged": {"rows": IntegerDim(0, 4096, 1, 100), "cols": IntegerDim(1, 1024, 1, 100)},
}
#: What of them `get_init_inputs` takes.
CONFIGURATION = ("heads", "width")
SEEDS = [f"seed {number}" for number in range(60)]
_CAP_BYTES = 16 << 20


def sizes(shapes: list[Dims]) -> list[int | None]:
    return [4 * math.prod(v for v in dims.values() if isinstance(v, int)) for dims in shapes]


def fit(shapes: list[Dims]) -> list[bool]:
    return [size is not None and size <= _CAP_BYTES for size in sizes(shapes)]


LIMITS = Limits(fit, sizes, _CAP_BYTES, cache_bytes=1 << 20, processors=12)


def sampler(space: Space, seed: str = "seed", limits: Limits = LIMITS) -> Sampler:
    return Sampler(space, seed, limits, LIMITS, varying(space, CONFIGURATION))


def drawn(space: Space, seed: str, split: str, secret: str = "nobody knows") -> list[Dims]:
    return [one.dims for one in sampler(space, seed).draw(split, secret=secret)]


def of(stratum: str, shapes: list[Drawn]) -> list[Dims]:
    return [one.dims for one in shapes if one.stratum == stratum]


# -- any draw --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("split", SPLITS)
def test_shapes_are_legal_and_reproducible(name: str, split: str) -> None:
    space = SPACES[name]
    for seed in SEEDS[:10]:
        shapes = drawn(space, seed, split)
        assert len(shapes) == COUNTS[split]
        assert shapes == drawn(space, seed, split)
        for dims in shapes:
            assert check_shape(space, dims) == dims
            assert shapes.count(dims) == 1
            assert list(dims) == list(space)


def test_held_out_shapes_follow_from_the_secret_and_the_others_do_not() -> None:
    for split in SPLITS:
        same = drawn(SPACE, "seed", split, "a") == drawn(SPACE, "seed", split, "b")
        assert same is (split != "held_out")
        assert drawn(SPACE, "seed", split) != drawn(SPACE, "another", split)


# -- what people run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_every_timed_split_has_the_tasks_own_size_and_sizes_near_it(name: str) -> None:
    space = SPACES[name]
    for seed in SEEDS[:20]:
        for split in NEAR:
            shapes = sampler(space, seed).draw(split, secret="s")
            assert [one.stratum for one in shapes] == [
                "own",
                *["near"] * NEAR[split],
                *["small"] * SMALL[split],
            ]
            assert shapes[0].dims == defaults(space)
            for dims in of("near", shapes):
                for n, dim in space.items():
                    if isinstance(dim, IntegerDim):
                        assert dim.default <= 8 * int(dims[n]) and int(dims[n]) <= 2 * dim.default


def test_the_configuration_stays_as_it_is_and_varies_in_adversarial_shapes() -> None:
    space = SPACES["attention"]
    for seed in SEEDS[:20]:
        one = sampler(space, seed)
        timed = [each.dims for split in NEAR for each in one.draw(split, secret="s")] + [
            d.dims for d in one.further(9)
        ]
        assert {(dims["heads"], dims["width"]) for dims in timed} == {(8, 64)}
        assert len({(each.dims["heads"], each.dims["width"]) for each in one.draw("adversarial")}) > 2


def test_what_varies() -> None:
    space = SPACES["attention"]
    assert varying(space, CONFIGURATION) == ["batch", "length"]
    assert varying(space, CONFIGURATION, ["width"]) == ["batch", "length", "width"]
    # A dimension of one value does not, and where none is left of the run-time ones, the configuration varies.
    assert varying({**space, "length": IntegerDim(7, 8, 4, 8)}, CONFIGURATION) == ["batch"]
    assert varying({"heads": space["heads"], "dtype": SPACE["dtype"]}, CONFIGURATION) == ["heads", "dtype"]
    assert varying({"dtype": SPACE["dtype"]}, ["dtype"]) == []
    assert varying({}, []) == []


def test_the_own_size_is_that_of_the_kind_of_device() -> None:
    dim = Dim(1, 64, default=8, gpu=32)
    for gpu, own in ((False, 8), (True, 32)):
        space = parse_space({"rows": _fields_of("rows", dim, gpu=gpu)})
        assert sampler(space).draw("visible")[0] == Drawn({"rows": own}, "own")


def test_what_a_user_names_is_varied() -> None:
    """A configuration stays as it is unless the request's `space` names it, by whatever name of those that move together."""
    inferred = replace(
        refused(""), ok=True, space={"batch": IntegerDim(1, 64, 1, 8), "features": IntegerDim(8, 64, 8, 16)},
        tied={"batch": ("batch",), "features": ("features", "hidden")},
    )  # fmt: skip
    assert "VARIES" not in declared("", inferred, {})
    named: dict[str, Any] = {}
    exec(declared("", inferred, {"hidden": {"max": 32}}), named)
    assert named["VARIES"] == ["features"]
    assert varying(inferred.space, ["features"], named["VARIES"]) == ["batch", "features"]


def test_near_shapes_are_log_uniform_awkward_ones_among_them_and_of_a_realistic_volume() -> None:
    shapes = [one.dims for seed in SEEDS for one in sampler(SPACE, seed).further(28) if one.stratum == "near"]
    rows = [int(dims["rows"]) for dims in shapes if dims["rows"] != 512]
    assert 0.3 < sum(value < 256 for value in rows) / len(rows) < 0.7
    assert 0.15 < sum(value % 16 == 0 for value in rows) / len(rows) < 0.6
    assert 0.2 < sum(value % 2 for value in rows) / len(rows) < 0.7
    assert any(is_prime(value) for value in rows) and any((value - 1) % 64 == 0 for value in rows)
    changed = [sum(dims[n] != dim.default for n, dim in SPACE.items()) for dims in shapes]
    assert 0.1 < changed.count(3) / len(changed) < 0.5 and changed.count(0) == 0


def test_small_shapes_are_small() -> None:
    for name, space in SPACES.items():
        first, dim = next(iter(space.items()))
        assert isinstance(dim, IntegerDim)
        smalls = [dims for seed in SEEDS for dims in of("small", sampler(space, seed).further(28))]
        firsts = [int(dims[first]) for dims in smalls]
        assert max(firsts) <= 16, name
        assert max(dim.low, 1) in firsts, name


def test_the_own_size_is_taken_however_large_and_larger_ones_only_where_they_fit() -> None:
    """Beyond the caps lies the own size, and what is no larger in any dimension."""
    nothing = Limits(lambda shapes: [False] * len(shapes), sizes, 1, 1 << 20, 12)
    for seed in SEEDS[:20]:
        for split in NEAR:
            shapes = sampler(SPACE, seed, nothing).draw(split, secret="s")
            assert len(shapes) == COUNTS[split]
            assert all(int(one.dims["rows"]) <= 512 and int(one.dims["cols"]) <= 1024 for one in shapes)
    larger = [dims for seed in SEEDS for dims in drawn(SPACE, seed, "held_out") if int(dims["rows"]) > 512]
    assert larger


# -- apart -----------------------------------------------------------------------------------------------------


def test_what_is_near() -> None:
    here: Dims = {"rows": 1000, "cols": 100, "dtype": "float32"}
    for rows, cols, near in (
        (1000, 100, True),
        (1030, 132, True),
        (1031, 100, False),
        (970, 134, False),
    ):
        there = {**here, "rows": rows, "cols": cols}
        assert are_near(SPACE, here, there) is are_near(SPACE, there, here) is near, there
    assert not are_near(SPACE, here, {**here, "dtype": "bfloat16"})
    # Sixteen steps are much for small sizes.
    assert are_near(SPACE, {**here, "rows": 12}, {**here, "rows": 16})
    assert not are_near(SPACE, {**here, "rows": 2}, {**here, "rows": 16})


@pytest.mark.parametrize("name", ["matrix", "vector", "ragged"])
def test_near_shapes_of_no_split_are_near_anothers(name: str) -> None:
    space = SPACES[name]
    for seed in SEEDS:
        one = sampler(space, seed)
        visible, validation = of("near", one.draw("visible")), of("near", one.draw("validation"))
        assert not any(are_near(space, dims, other) for dims in validation for other in visible)
        for secret in "ab":
            held_out = of("near", one.draw("held_out", secret=secret))
            assert not any(
                are_near(space, dims, other) for dims in held_out for other in visible + validation
            )
        assert not any(one.remark(split) for split in SPLITS)


def test_a_small_space_is_used_up_and_that_is_said() -> None:
    few: Space = {"n": IntegerDim(1, 12, 1, 2)}
    one = sampler(few)
    splits = {split: one.draw(split, secret="s") for split in SPLITS}
    # Sizes from 1 to 4 without the own one are three.
    assert len(of("near", splits["visible"])) == 2 and not one.remark("visible")
    assert len(of("near", splits["validation"])) == 1
    assert "identical" in one.remark("held_out")
    assert all(shapes for shapes in splits.values())


def test_held_out_shapes_stay_away_from_a_users_own() -> None:
    for seed in SEEDS[:20]:
        one = sampler(SPACE, seed)
        users = of("near", one.draw("held_out", secret="s"))
        again = of("near", one.draw("held_out", secret="s", exempt=users))
        assert len(again) == len(users)
        assert not any(are_near(SPACE, dims, other) for dims in again for other in users)


@pytest.mark.parametrize("name", SPACES)
def test_further_validation_shapes_are_others_of_the_same_kind(name: str) -> None:
    space = SPACES[name]
    for seed in SEEDS[:10]:
        one = sampler(space, seed)
        further = one.further(28)
        assert further == sampler(space, seed).further(28)
        assert {each.stratum for each in further} == {"near", "small"}
        assert len(further) > (20 if name == "matrix" else 8)
        visible = of("near", one.draw("visible"))
        known = [each.dims for each in one.draw("validation")]
        for each in further:
            assert check_shape(space, each.dims) == each.dims
            assert further.count(each) == 1
            assert each.dims not in known
        assert not any(are_near(space, dims, other) for dims in of("near", further) for other in visible)
    assert sampler({"dtype": SPACE["dtype"]}).further(28) == []


def test_a_task_without_dimensions_has_its_own_shape_alone() -> None:
    for split in NEAR:
        assert sampler({}).draw(split, secret="s") == [Drawn({}, "own")]
        fixed = sampler({"heads": IntegerDim(8, 8, 1, 8)})
        assert fixed.draw(split, secret="s") == [Drawn({"heads": 8}, "own")] and not fixed.remark(split)
    many: Space = {f"d{number}": ChoiceDim(tuple(range(30)), 0) for number in range(12)}
    one = sampler(many)
    assert len({tuple(each.dims.values()) for each in one.draw("held_out")}) == 1 + NEAR["held_out"]
    assert len(one.draw("adversarial")) == COUNTS["adversarial"]
    assert not one.remark("held_out")


# -- what others say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims",
    [
        {"rows": {"min": 5, "max": 2, "multiple_of": 1, "default": 3}},
        {"rows": {"min": 0.5, "max": 2, "multiple_of": 1, "default": 1}},
        {"rows": {"min": True, "max": 2, "multiple_of": 1, "default": 1}},
        {"__import__('os')": {"min": 1, "max": 2, "multiple_of": 1, "default": 1}},
        {"rows": {"choices": [], "default": None}},
        {"rows": {"choices": [["nested"]], "default": None}},
        [1, 2],
        {f"d{i}": {"min": 1, "max": 2, "multiple_of": 1, "default": 1} for i in range(100)},
    ],
)
def test_a_hostile_space_is_refused(dims: object) -> None:
    with pytest.raises(RoleFailure) as caught:
        parse_space(dims)
    assert caught.value.word == "task_rejected"


@pytest.mark.parametrize("dims", [{"rows": 0}, {"rows": 3, "depth": 1}, {"cols": 9}, {"dtype": "int8"}, 7])
def test_shapes_outside_the_space_are_refused(dims: object) -> None:
    with pytest.raises(RoleFailure):
        check_shape(SPACE, dims)


def test_the_widest_space_is_drawn_from_quickly() -> None:
    """No search is longer for a range that a hostile file makes huge."""
    huge: Space = {f"d{n}": IntegerDim(0, (1 << 40) - 1, 1, 5) for n in range(12)}
    wide = sampler(huge)
    for split in SPLITS:
        for one in wide.draw(split, secret="s"):
            assert check_shape(huge, one.dims) == one.dims
