"""Comparing what is too large to be copied: in pieces, by fingerprints, and where the oracle is to look. On tensors of the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.referee.checking import doubts, large
from evaluator.referee.sides import fingerprint
from evaluator.referee.sides.open_shape import ShapeChecks


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_PIECE", 24)
    monkeypatch.setattr(fingerprint, "_WORDS", 16)


@pytest.mark.parametrize("sizes", [(), (5,), (100,), (10, 7), (3, 40), (2, 3, 100), (4, 0)])
def test_pieces_are_all_of_both_and_none_is_large(sizes: tuple[int, ...]) -> None:
    mine = torch.arange(max(1, torch.Size(sizes).numel()), dtype=torch.float32)[
        : torch.Size(sizes).numel()
    ].reshape(sizes)
    found = list(large.pieces(mine, mine + 1))
    assert torch.equal(torch.cat([one.reshape(-1) for _, one, _ in found]), mine.reshape(-1))
    assert all(torch.equal(other, one + 1) for _, one, other in found)
    assert all(one.numel() <= max(24, *sizes[-1:]) for _, one, _ in found if sizes)


def test_a_piece_is_told_with_its_first_row() -> None:
    mine = torch.arange(70.0).reshape(10, 7)
    assert all(torch.equal(one, mine[first : first + len(one)]) for first, one, _ in large.pieces(mine, mine))


@pytest.mark.parametrize("length", [0, 5, 8, 200, 1003])
@pytest.mark.parametrize("starts", [0, 3])
def test_a_fingerprint_sees_any_byte_that_changes(length: int, starts: int) -> None:
    memory = torch.randint(0, 256, (length + starts,), dtype=torch.uint8)
    span = memory[starts:]
    key, before = large.fingerprint(span)
    assert large.fingerprint(span, key) == (key, before)
    assert large.fingerprint(span)[0] != key
    for place in sorted({0, length // 2, length - 1} if length else ()):
        span[place] += 1
        assert large.fingerprint(span, key)[1] != before
        span[place] -= 1


def test_a_fingerprint_sees_words_that_change_places() -> None:
    """A plain sum would not: whoever fills an output late could swap what is there."""
    span = torch.arange(64 * 8, dtype=torch.int64).view(torch.uint8)
    key, before = large.fingerprint(span)
    words = span.view(torch.int64)
    for one, other in ((0, 1), (3, 3 + 16), (5, 60)):
        swapped = words.clone()
        swapped[[one, other]] = words[[other, one]]
        assert large.fingerprint(swapped.view(torch.uint8), key)[1] != before


def test_bytes_are_compared_to_the_last_one() -> None:
    one = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    other = one.clone()
    assert large.same_bytes(one, other)
    other[-1] += 1
    assert not large.same_bytes(one, other)


def test_the_oracle_looks_where_values_differ_most_and_at_some_others() -> None:
    doubtful = [doubts.Doubt(float(gap), row, 10 + row) for row, gap in enumerate([1, 9, 2, 8, 3, 4])]
    for _ in range(20):
        chosen = doubts.chosen(doubtful)
        assert chosen[:2] == [1, 3] and len(set(chosen)) == 4
        assert all(row >= 10 for row in chosen[2:])
    assert doubts.chosen([]) == []
    assert doubts.chosen([doubts.Doubt(1.0, 7, 7)]) == [7]


@pytest.mark.parametrize("planted", [0.5, float("nan")])
def test_the_row_that_differs_most_is_found_beside_its_own_size(planted: float) -> None:
    theirs = torch.ones(6, 50)
    theirs[5] *= 1e6
    mine = theirs.clone()
    mine[5] += 1.0  # less than its rounding
    mine[2, 7] = planted
    doubt = doubts.doubt_of(10, mine, theirs)
    assert doubt.worst == 12 and doubt.gap > 0.1


def test_of_rows_that_differ_less_than_the_worst_one_one_is_drawn() -> None:
    theirs = torch.randint(1, 100, (400, 64))
    mine = theirs.clone()
    mine[100:300] = 0
    assert {doubts.doubt_of(0, mine, theirs).worst for _ in range(3)} <= set(range(100, 300))
    drawn = {doubts.doubt_of(0, mine, theirs).drawn for _ in range(50)}
    assert drawn <= set(range(100, 300)) and len(drawn) > 10
    mine[7] = -theirs[7]
    signs = doubts.doubt_of(0, mine.float(), theirs.float())
    assert signs.worst == 7
    assert {doubts.doubt_of(0, mine.float(), theirs.float()).drawn for _ in range(20)} & set(range(100, 300))


def _shape(outputs: list[tuple[int, ...]], inputs: list[tuple[int, ...]], *, plain: bool = True) -> Any:
    given = [SimpleNamespace(meta=SimpleNamespace(shape=one)) for one in inputs]
    call = SimpleNamespace(plain=plain)
    return SimpleNamespace(
        checks=ShapeChecks(),
        inputs=SimpleNamespace(given=given, call=call),
        output_metas=[SimpleNamespace(shape=one) for one in outputs],
    )


@pytest.mark.parametrize(
    ("outputs", "inputs", "places"),
    [
        ([(8, 3)], [(8, 5)], [0]),
        ([(8, 3), (8,)], [(5, 3), (8, 5), (8,)], [1, 2]),
        ([(8, 3), (4, 3)], [(8, 5)], None),
        ([()], [(8, 5)], None),
        ([(1, 3)], [(1, 5)], None),
        ([(8, 3)], [(5, 8)], None),
    ],
)
def test_rows_are_those_of_what_begins_with_the_outputs_first_dimension(
    outputs: list[tuple[int, ...]], inputs: list[tuple[int, ...]], places: list[int] | None
) -> None:
    assert large.batched(_shape(outputs, inputs)) == places
    assert large.batched(_shape(outputs, inputs, plain=False)) is None
    known = _shape(outputs, inputs)
    known.checks.by_rows = False  # the reference was asked, and its rows depend on each other
    assert large.batched(known) is None
