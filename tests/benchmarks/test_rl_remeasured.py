"""Claims by another measurement: what was chosen stays, luck does not pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rl_remeasured import agreement, of_all, of_chosen, second_look
from rl.demo.arms import Outcome
from rl.demo.cells import Cell, Table

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


def test_what_was_chosen_is_worth_what_it_was_measured_at_again() -> None:
    worth = second_look(BEFORE, AFTER)
    outcome = Outcome("sft", 0, {"t": [2.0, 1.5, 1.0, 0.0]}, 0.25)
    assert of_all([outcome], worth)[0].scores == {"t": [1.0, 1.5, 1.0, 0.0]}
    assert of_chosen([outcome], worth)[0].scores == {"t": [1.0]}  # not the 1.5 that hindsight would choose
    with pytest.raises(KeyError):
        worth("t", 3.0)


def test_how_two_tables_agree() -> None:
    found = agreement(BEFORE, AFTER)
    assert (found["cells"], found["other_verdicts"], found["second_inside_first_interval"]) == (5, 0, 0.5)
    other = table([replace(cell, word="incorrect", speedup=0.0) for cell in FIRST])
    assert agreement(BEFORE, table([*other.cells[:1], *AFTER.cells[1:]]))["other_verdicts"] == 1
