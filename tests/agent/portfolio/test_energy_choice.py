"""Among members whose times tie, the one that needs least energy runs; time decides everywhere else."""

from __future__ import annotations

from dataclasses import replace

from agent.dispatch.tree import leaves
from agent.portfolio import Entry
from agent.portfolio.entries import tied
from tests.agent.portfolio.measured import entry
from tests.agent.portfolio.test_building import built, labels

HOT = replace(entry("hot", 1.51), relative_joules=0.9)
COOL = replace(entry("cool", 1.50, order=1), relative_joules=0.6)
SLOW = replace(entry("slow", 1.45, order=2), relative_joules=0.3)


def test_of_two_that_tie_the_one_with_fewer_joules_runs() -> None:
    assert labels(built([HOT, COOL, SLOW])) == ["cool"]


def test_who_is_more_than_two_percent_slower_saves_nothing_that_counts() -> None:
    assert labels(built([HOT, SLOW])) == ["hot"]


def test_nothing_is_said_where_the_fastest_was_not_measured() -> None:
    assert labels(built([replace(HOT, relative_joules=None), COOL])) == ["hot"]


def test_what_was_not_measured_is_no_less() -> None:
    assert labels(built([HOT, replace(COOL, relative_joules=None)])) == ["hot"]


def test_who_beats_no_baseline_is_not_chosen_for_its_joules() -> None:
    doubtful = replace(entry("doubtful", 1.505, order=3, error=0.9), relative_joules=0.1)
    assert labels(built([HOT, doubtful])) == ["hot"]


def test_a_choice_by_energy_is_still_one_that_is_proved() -> None:
    portfolio = built([HOT, COOL])
    assert all(leaf.faster for leaf in leaves(portfolio.tree))


def test_joules_are_worth_measuring_only_where_times_tie() -> None:
    def named(entries: list[Entry]) -> list[str]:
        return [one.candidate.label for one in tied(entries, 3)]

    assert named([HOT, SLOW]) == []
    assert named([HOT]) == []
    assert named([]) == []
    assert named([COOL, SLOW, HOT]) == ["hot", "cool"]
    many = [entry(f"e{number}", 1.5 - number / 1000, order=number) for number in range(6)]
    assert named(many) == ["e0", "e1", "e2"]
    assert named([entry("noisy", 1.5, width=0.6), entry("noisy too", 1.5, width=0.6)]) == []
