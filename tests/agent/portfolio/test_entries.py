"""The order of candidates: by validation figures only, simple things first, never worse than the compiler."""

from __future__ import annotations

from dataclasses import replace

from agent.portfolio import Entry, choose_winner, rank
from tests.agent.portfolio.measured import entry


def test_the_fastest_wins() -> None:
    chosen = choose_winner([entry("a", 1.3), entry("b", 1.6), entry("c", 1.1, origin="compiler")])
    assert chosen is not None
    assert (chosen[0].candidate.label, chosen[1]) == ("b", "faster")
    assert "1.60x [1.58, 1.62]" in chosen[2]


def test_a_wide_interval_is_no_tie() -> None:
    """Seen on a noisy machine: 1.98x [1.42, 2.83] lost to a shorter file with 1.50x."""
    fast, short = entry("fast", 1.98, 0.6, lines=356), entry("short", 1.50, 0.5, lines=181)
    assert rank([fast, short])[0].candidate.label == "fast"


def test_within_two_percent_the_shorter_then_the_older_wins() -> None:
    long, short = entry("long", 1.50, 0.05, lines=200), entry("short", 1.48, lines=20)
    assert [one.candidate.label for one in rank([long, short])] == ["short", "long"]
    new, old = entry("new", 1.50, 0.05, order=4), entry("old", 1.49, order=1)
    assert rank([new, old])[0].candidate.label == "old"
    far = entry("far", 1.40, lines=1)
    assert rank([long, far])[0].candidate.label == "long"


def test_nothing_confidently_faster_leaves_the_best_compiler_mode() -> None:
    modes = [entry("default", 0.97, origin="compiler"), entry("autotune", 0.99, origin="compiler", order=1)]
    chosen = choose_winner([entry("kernel", 1.01, 0.05), *modes])
    assert chosen is not None
    assert (chosen[0].candidate.label, chosen[1]) == ("autotune", "same")


def test_without_the_compiler_a_slower_kernel_is_called_slower() -> None:
    chosen = choose_winner([entry("kernel", 0.8)])
    assert chosen is not None
    assert chosen[1] == "slower"
    assert choose_winner([]) is None


def with_traffic(one: Entry, speedup: float) -> Entry:
    traffic = {"geomean_speedup": speedup, "geomean_ci95": [speedup - 0.05, speedup + 0.05]}
    return replace(one, verdict=replace(one.verdict, summary=replace(one.verdict.summary, traffic=traffic)))


def test_the_users_own_shapes_decide_where_they_are_known() -> None:
    """One is faster on average, the other where nearly all calls are."""
    average, usual = entry("average", 1.6), entry("usual", 1.2)
    assert rank([usual, average])[0] is average
    average = with_traffic(average, 1.1)
    usual = with_traffic(usual, 1.4)
    chosen = choose_winner([average, usual])
    assert chosen is not None
    assert chosen[0] is usual
    assert "1.40x [1.35, 1.45]" in chosen[2]
