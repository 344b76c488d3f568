"""What a task may declare about its dimensions."""

from __future__ import annotations

import dataclasses

import pytest

from kernelbench_tasks import Choice, Dim, check_dims


def test_a_dimension_knows_its_legal_sizes() -> None:
    dim = Dim(10, 100, multiple_of=8)
    assert (dim.smallest, dim.largest) == (16, 96)
    assert 24 in dim
    assert 25 not in dim
    assert 8 not in dim
    assert True not in Dim(1, 4)
    assert [dim.nearest(size) for size in (0, 17, 23, 1000)] == [16, 16, 24, 96]


def test_a_default_lies_in_the_middle_of_the_octaves() -> None:
    assert Dim(1, 16384).default == 128
    assert Dim(8, 8192, default=1024).default == 1024
    assert Dim(0, 0).default == 0


def test_a_dimension_has_a_size_of_its_own_on_a_gpu() -> None:
    assert (Dim(1, 4096, default=16).gpu, Dim(1, 4096, default=16, gpu=4096).gpu) == (16, 4096)
    with pytest.raises(ValueError, match="gpu=5000"):
        Dim(1, 4096, default=16, gpu=5000)


def test_dimensions_are_values() -> None:
    assert Dim(1, 4) == Dim(1, 4)
    assert hash(Choice("a", "b")) == hash(Choice("a", "b"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dim(1, 4).min = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((5, 4), "no multiple"),
        ((5, 7, 8), "no multiple"),
        ((-1, 4), "negative"),
        ((1, 4, 0), "at least 1"),
        ((1, 4, 1, 9), "not a legal size"),
        ((8, 64, 8, 9), "not a legal size"),
    ],
)
def test_an_impossible_dimension_is_refused(arguments: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Dim(*arguments)


def test_a_size_must_be_an_integer() -> None:
    with pytest.raises(TypeError, match="min must be an integer"):
        Dim(1.5, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max must be an integer"):
        Dim(1, True)


def test_a_choice_keeps_its_values_apart_by_type() -> None:
    choice = Choice("float32", "bfloat16")
    assert (choice.default, choice.values) == ("float32", ("float32", "bfloat16"))
    assert "bfloat16" in choice
    assert 1 in Choice(1, 2)
    assert True not in Choice(1, 2)
    assert Choice("a", "b", default="b").default == "b"


@pytest.mark.parametrize("values", [(), ("a", "a")])
def test_a_choice_without_alternatives_is_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least one|repeated"):
        Choice(*values)


def test_a_choice_takes_plain_values_only() -> None:
    with pytest.raises(TypeError, match="list"):
        Choice(["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not among"):
        Choice("a", default="b")


def test_a_space_is_checked_as_a_whole() -> None:
    dims = {"rows": Dim(1, 4), "dtype": Choice("float32")}
    assert check_dims(dims) == dims
    for bad, complaint in (
        ({}, "empty"),
        ({"a b": Dim(1, 2)}, "usable"),
        ({"a": 3}, "must be"),
        ([], "mapping"),
    ):
        with pytest.raises((ValueError, TypeError), match=complaint):
            check_dims(bad)
