"""Claims by another measurement: what was chosen stays, luck does not pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rl_remeasured import agreement, chosen_share, looks, seen_as
from experiments.dialect.arms import Outcome
from experiments.dialect.cells import Cell, Table

FIRST = [
    Cell("t", "lucky", "accepted", 2.0, (1.9, 2.1)),
    Cell("t", "steady", "accepted", 1.5, (1.4, 1.6)),
    Cell("t", "twin a", "accepted", 1.0, (0.5, 1.5)),
    Cell("t", "twin b", "accepted", 1.0, (0.9, 1.1)),
    Cell("t", "wrong", "incorrect", 0.0),
]
SECOND = {"lucky": 1.0, "steady": 1.5, "twin a": 0.8, "twin b": 1.2, "wrong": 0.0}


def table(cells: list[Cell]) -> Table:
    return Table("cuda", "small", ("row_sum",), "", {}, tuple(cells))


BEFORE = table(FIRST)
AFTER = table([replace(cell, speedup=SECOND[cell.program]) for cell in FIRST])


def test_the_second_measurement_counts_on_both_sides() -> None:
    worths = looks(BEFORE, AFTER)
    wrote = Outcome("sft", 0, {"t": [2.0, 1.0, 0.0]}, 0.25, different={"t": [2.0]})
    optimum = Outcome("optimum", 0, {"t": [2.0]}, 0.0, different={"t": [2.0]})
    found = seen_as([wrote, optimum], BEFORE, worths["second"])
    assert [one.scores for one in found] == [{"t": [1.0, 1.0, 0.0]}, {"t": [1.5]}]
    assert [one.different for one in found] == [{"t": [1.0]}, {"t": [1.5]}]
    both = seen_as([wrote, optimum], BEFORE, worths["both"])
    assert [one.scores for one in both] == [{"t": [1.5, 1.0, 0.0]}, {"t": [1.5]}]
    with pytest.raises(KeyError):
        worths["second"]("t", 3.0)


def test_what_was_chosen_by_luck_is_no_optimum_and_is_told_apart() -> None:
    worth = looks(BEFORE, AFTER)["second"]
    steady = Outcome("contrastive", 0, {"t": [1.5]}, 0.0)
    optimum = Outcome("optimum", 0, {"t": [2.0]}, 0.0)
    assert (
        chosen_share([steady, optimum], worth)["value"] == 1.5
    )  # better than what the first table would choose
    found = seen_as([steady, optimum], BEFORE, worth)
    assert found[0].scores == found[1].scores == {"t": [1.5]}


def test_how_two_tables_agree() -> None:
    found = agreement(BEFORE, AFTER)
    assert (found["cells"], found["other_verdicts"], found["second_inside_first_interval"]) == (5, 0, 0.5)
    other = table([replace(cell, word="incorrect", speedup=0.0) for cell in FIRST])
    assert agreement(BEFORE, table([*other.cells[:1], *AFTER.cells[1:]]))["other_verdicts"] == 1
