"""Choosing: by validation figures only, simple things first, never worse than the compiler."""

from __future__ import annotations

from typing import Any

from agent.bundle.assembly import Leaves
from agent.bundle.domain import dims_key
from agent.candidates import Candidate
from agent.portfolio import Entry, build_portfolio, choose_winner, rank

SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)


def entry(
    name: str,
    geomean: float,
    width: float = 0.02,
    *,
    origin: str = "human",
    order: int = 0,
    lines: int = 10,
    speedups: list[float] | None = None,
) -> Entry:
    each = speedups or [geomean] * len(SIZES)
    rows: list[dict[str, Any]] = [
        {
            "dims": {"n": size},
            "split": "validation",
            "timed": True,
            "speedup": speedup,
            "baseline_us": 10.0,
            "baselines": {"eager/2t": {"median_us": 20.0}},
        }
        for size, speedup in zip(SIZES, each, strict=True)
    ]
    summary = {"geomean_speedup": geomean, "geomean_ci95": [geomean - width, geomean + width]}
    verdict = {"verdict": "accepted", "summary": summary, "shapes": rows, "environment": {"threads": 2}}
    return Entry(Candidate(f"# {name}" + "\n" * lines, origin, name), order, verdict)


ELEMENTS = {dims_key({"n": size}): size for size in SIZES}


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


def test_one_member_when_it_is_best_everywhere() -> None:
    portfolio = build_portfolio([entry("a", 1.5), entry("b", 1.2)], ELEMENTS)
    assert portfolio is not None
    assert portfolio.leaves == Leaves(0, 0, None)
    assert [member.candidate.label for member in portfolio.members] == ["a"]


def test_a_second_member_takes_the_side_where_it_is_clearly_better() -> None:
    big = entry("big", 1.5, speedups=[0.6, 0.7, 1.9, 2.0, 2.0, 2.1])
    small = entry("small", 1.2, speedups=[1.4, 1.5, 1.1, 1.0, 1.0, 1.0])
    portfolio = build_portfolio([big, small], ELEMENTS)
    assert portfolio is not None
    assert portfolio.leaves == Leaves(small=1, large=0, limit=100)
    assert [member.candidate.label for member in portfolio.members] == ["big", "small"]
    assert "small runs up to 100 input elements" in portfolio.reason


def test_a_leaf_that_loses_to_plain_eager_goes_to_the_reference() -> None:
    losing = entry("big", 1.5, speedups=[0.2, 0.3, 1.9, 2.0, 2.0, 2.1])
    portfolio = build_portfolio([losing], ELEMENTS)
    assert portfolio is not None
    assert portfolio.leaves == Leaves(small=None, large=0, limit=100)
    assert len(portfolio.members) == 1


def test_no_threshold_for_a_single_shape_or_without_sizes() -> None:
    big = entry("big", 1.5, speedups=[0.6, 1.9, 1.9, 2.0, 2.0, 2.1])
    small = entry("small", 1.2, speedups=[1.5, 1.2, 1.1, 1.0, 1.0, 1.0])
    for elements in (ELEMENTS, {}):
        portfolio = build_portfolio([big, small], elements)
        assert portfolio is not None
        assert portfolio.leaves.limit is None


def test_the_users_own_shapes_decide_where_they_are_known() -> None:
    """One is faster on average, the other where nearly all calls are."""
    average, usual = entry("average", 1.6), entry("usual", 1.2)
    assert rank([usual, average])[0] is average
    average.verdict["summary"]["traffic"] = {"geomean_speedup": 1.1, "geomean_ci95": [1.05, 1.15]}
    usual.verdict["summary"]["traffic"] = {"geomean_speedup": 1.4, "geomean_ci95": [1.35, 1.45]}
    chosen = choose_winner([average, usual])
    assert chosen is not None
    assert chosen[0] is usual
    assert "1.40x [1.35, 1.45]" in chosen[2]


def test_a_second_member_is_worth_what_its_shapes_weigh() -> None:
    winner = entry("winner", 1.6, speedups=[1.5] * 6)
    # Twice as fast at one small shape, a little slower at the others of its side.
    rival = entry("rival", 1.2, speedups=[3.0, 1.51, 1.51, 0.5, 0.5, 0.5], order=1)
    both = build_portfolio([winner, rival], ELEMENTS)
    assert both is not None
    assert len(both.members) == 2
    for one in (winner, rival):
        for row, weight in zip(one.verdict["shapes"], (1, 500, 500, 1, 1, 1), strict=True):
            row["weight"] = float(weight)
    alone = build_portfolio([winner, rival], ELEMENTS)
    assert alone is not None
    assert alone.members == (winner,)
