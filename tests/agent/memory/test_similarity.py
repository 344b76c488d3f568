"""The similarity is what its documentation says."""

from __future__ import annotations

import pytest

from agent.memory.features import Features
from agent.memory.similarity import LEAST, most_similar, similarity

ROWS = Features({"mul": 1, "softmax": 1}, frozenset({"reduce:last"}), frozenset({"float32"}), "medium")
COLUMNS = Features({"mul": 1, "softmax": 1}, frozenset({"reduce:first"}), frozenset({"float32"}), "medium")
PRODUCT = Features({"matmul": 1}, frozenset(), frozenset({"float32"}), "medium")
NOTHING = Features({}, frozenset(), frozenset({"float32"}), "medium")


def test_by_hand() -> None:
    assert similarity(ROWS, ROWS) == pytest.approx(1.0)
    assert similarity(ROWS, COLUMNS) == pytest.approx(0.8)
    assert similarity(ROWS, PRODUCT) == pytest.approx(0.25)
    # operators (1 + 1) / (3 + 1), as 1 + log2(4) = 3; dtypes 0; two classes apart
    other = Features({"mul": 4, "softmax": 1}, ROWS.reductions, frozenset({"float16"}), "tiny")
    assert similarity(ROWS, other) == pytest.approx(0.55 * 2 / 4 + 0.20 + 0.15 * 0.5)
    assert similarity(other, ROWS) == similarity(ROWS, other)


def test_two_modules_of_which_nothing_is_known_are_not_alike() -> None:
    assert similarity(NOTHING, NOTHING) < LEAST
    assert similarity(NOTHING, PRODUCT) < LEAST


def test_the_best_come_first_and_strangers_not_at_all() -> None:
    known = [("columns", COLUMNS, "c"), ("product", PRODUCT, "p"), ("rows", ROWS, "r")]
    assert [key for key, _ in most_similar(ROWS, known, 9)] == ["rows", "columns"]
    assert [key for key, _ in most_similar(ROWS, known, 1)] == ["rows"]
    assert most_similar(ROWS, known, 0) == []


def test_one_group_does_not_fill_the_answer() -> None:
    known = [*((n, ROWS, "same") for n in range(5)), (9, COLUMNS, "other")]
    assert [key for key, _ in most_similar(ROWS, known, 3)] == [0, 9]
