"""From two arrays to words: each planted mistake is named by what it looks like."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from agent.strategy.mismatch import explained, sentences
from evaluator.oracle.places import places
from evaluator.verdict import from_json

ROWS, COLUMNS = 12, 1000


def exact() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(ROWS, COLUMNS))


def told(
    broken: Callable[[np.ndarray], np.ndarray], right: np.ndarray | None = None
) -> tuple[dict[str, object], str]:
    expected = exact() if right is None else right
    got = broken(expected.copy())
    wrong = ~np.isclose(got, expected, rtol=1e-6, atol=1e-9)
    found = places(wrong, got, expected)
    return dict(json.loads(json.dumps(found))), " ".join(sentences(found))


def with_(place: tuple[object, object], value: object) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values[place] = value(values[place]) if callable(value) else value  # type: ignore[index]
        return values

    return change


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (with_((slice(None), slice(992, None)), 0.0), ["last 8 of 1000 columns", "what a tile of 32 leaves", "never written"]),
        (with_((slice(None), 999), 5.0), ["only the last of 1000 columns", "incomplete tile"]),
        (with_((4, slice(None)), lambda v: v + 1.0), ["one of 12 rows", "special case of the data", "one constant"]),
        (with_((0, slice(None)), np.nan), ["first of 12 rows", "NaN where", "initial value"]),
        (with_((slice(None), slice(3, None, 4)), lambda v: -v), ["every 4th of 1000 columns", "stride", "sign is wrong"]),
        (lambda v: 1.5 * v, ["Every element is wrong", "times about 1.5", "a factor"]),
        (lambda v: np.roll(v, 1, 1), ["one column to the right", "off by one"]),
        (lambda v: np.roll(v, -1, 0), ["one row up", "off by one"]),
        (lambda v: v**3 + 0.1, ["Every element is wrong", "No simple pattern"]),
        (lambda v: v.reshape(-1)[::-1].reshape(v.shape), ["another order"]),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_told_by_place_and_pattern(
    broken: Callable[[np.ndarray], np.ndarray], expected: list[str]
) -> None:
    _, words = told(broken)
    for part in expected:
        assert part in words


def test_a_transposed_result_and_integers() -> None:
    square = np.arange(64.0).reshape(8, 8)
    assert "row and column strides" in told(lambda v: v.T.copy(), square)[1]
    counts = np.arange(3000).reshape(3, 1000)
    found, words = told(lambda v: np.roll(v, -1, 1), counts)
    assert found["pattern"] == "next_column"
    assert "one column to the left" in words


def test_places_hold_neither_contents_nor_more_than_a_few_words() -> None:
    right = exact()
    found, _ = told(with_((slice(None), slice(992, None)), 0.0), right)
    assert set(found) <= {
        "share", "row_count", "column_count", "rows", "columns", "tail_columns", "column_tile", "pattern",
    }  # fmt: skip
    assert not {float(value) for value in found.values() if isinstance(value, float)} & set(right.reshape(-1))
    wrong = np.ones((1, 1), dtype=bool)
    assert places(wrong, np.zeros((1, 1)), np.ones((1, 1)))["share"] == "all"


def test_an_output_too_large_to_look_at_says_nothing() -> None:
    wrong = np.broadcast_to(np.ones((1, 1), dtype=bool), (1 << 13, 1 << 12))
    assert places(wrong, wrong, wrong) == {}


def test_only_findings_with_places_are_explained() -> None:
    finding = {
        "rule": "wrong_result",
        "places": {"share": "few", "rows": "last", "row_count": 5, "columns": "all"},
    }
    said = explained(
        from_json({"verdict": "incorrect", "findings": [{"rule": "x"}, finding, finding, {"places": None}]})
    )
    assert said[0] == "Very few elements are wrong: only the last of 5 rows."
    assert len(said) == 2
    assert explained(from_json({"verdict": "accepted", "findings": []})) == []
