"""Counts in sentences."""

from __future__ import annotations

from evaluator.counting import counted


def test_one_is_singular_and_every_other_number_plural() -> None:
    assert [counted(count, "shape") for count in (0, 1, 2)] == ["0 shapes", "1 shape", "2 shapes"]
    assert [counted(count, "entry", "entries") for count in (1, 3)] == ["1 entry", "3 entries"]
