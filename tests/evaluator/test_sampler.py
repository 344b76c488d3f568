"""Shapes: legal, reproducible from their seed, apart from split to split, and not all alike."""

from __future__ import annotations

import pytest

from evaluator.errors import RoleFailure
from evaluator.shapes.sampler import COUNTS, SPLITS, sample
from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, check_shape, parse_space

SPACE: Space = {
    "rows": IntegerDim(1, 16384, 1, 512),
    "cols": IntegerDim(8, 8192, 2, 1024),
    "dtype": ChoiceDim(("float32", "bfloat16"), "float32"),
}


def fits(shapes: list[Dims]) -> list[bool]:
    return [int(dims["rows"]) * int(dims["cols"]) <= 1 << 22 for dims in shapes]


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_are_legal_and_reproducible(split: str) -> None:
    shapes = sample(SPACE, split, "seed", fits)
    assert 0 < len(shapes) <= COUNTS[split]
    assert shapes == sample(SPACE, split, "seed", fits)
    assert all(fits(shapes))
    for dims in shapes:
        assert check_shape(SPACE, dims) == dims


def test_another_seed_draws_other_shapes() -> None:
    assert sample(SPACE, "held_out", "a", fits) != sample(SPACE, "held_out", "b", fits)


def test_splits_do_not_share_shapes() -> None:
    drawn = [tuple(sorted(dims.items())) for split in SPLITS for dims in sample(SPACE, split, "seed", fits)]
    assert len(set(drawn)) == len(drawn)


def test_sampling_is_not_uniform_in_size() -> None:
    rows = [int(dims["rows"]) for seed in range(30) for dims in sample(SPACE, "held_out", str(seed), fits)]
    assert sum(value < 128 for value in rows) > len(rows) / 4
    assert sum(value > 1024 for value in rows) > len(rows) / 10
    assert any(value % 2 for value in rows)
    assert any(value % 64 == 0 for value in rows)


def test_a_task_without_dimensions_has_one_shape() -> None:
    assert sample({}, "visible", "seed", fits) == [{}]


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
