"""Which baselines go on being timed: near rivals always, those that cannot be the fastest not for long."""

from __future__ import annotations

from evaluator.referee.open_shape import Baseline
from evaluator.referee.ranking import without_hopeless


def left(**blocks: list[int]) -> list[str]:
    baselines = [Baseline(name, "eager", 1) for name in blocks]
    rounds = [dict(zip(blocks, times, strict=True)) for times in zip(*blocks.values(), strict=True)]
    return [baseline.name for baseline in without_hopeless(rounds, baselines)]


def test_a_baseline_whose_best_block_is_twice_as_long_as_the_worst_of_another_is_out() -> None:
    assert left(one_thread=[100, 110], two_threads=[5000, 230]) == ["one_thread"]


def test_one_disturbed_block_puts_nobody_out() -> None:
    assert left(fastest=[100, 900], near=[120, 125], disturbed=[4000, 130]) == [
        "fastest",
        "near",
        "disturbed",
    ]


def test_the_fastest_stays_even_where_all_its_blocks_but_one_were_disturbed() -> None:
    assert "fastest" in left(fastest=[100, 900, 900], steady=[150, 151, 152])
