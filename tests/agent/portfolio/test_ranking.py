"""Leaderboards put the winner first, or say why another candidate is delivered."""

from __future__ import annotations

from dataclasses import replace

from agent.portfolio import Entry, build_portfolio
from agent.portfolio.ranking import last_ranking, ranking
from tests.agent.portfolio.measured import domain, entry


def delivered(entries: list[Entry]) -> list[str]:
    """The sha256 of what would be delivered, the winner first."""
    portfolio = build_portfolio(entries, domain(), ["n"])
    assert portfolio is not None
    return [member.candidate.sha256 for member in portfolio.delivered]


def test_the_order_is_that_of_all_shapes_and_not_of_the_first_verdict() -> None:
    library = entry("library", 1.97, speedups=[1.2] * 6)
    compiled = entry("compiled", 1.70, speedups=[1.8] * 6, order=1)
    first, second = ranking([library, compiled], delivered([library, compiled]))
    assert (first["sha256"], first["place"], first["why"]) == (compiled.candidate.sha256, 1, "")
    assert round(first["geomean_speedup"], 6) == 1.8 and round(first["worst_speedup"], 6) == 1.8
    assert first["ci95"][0] < 1.8 < first["ci95"][1]
    assert (second["sha256"], second["place"]) == (library.candidate.sha256, 2)


def test_a_candidate_that_was_timed_at_few_shapes_says_so_and_counts_as_the_reference_elsewhere() -> None:
    everywhere = entry("everywhere", 1.4)
    seldom = entry("seldom", 1.6, speedups=[1.6, 1.6, None, None, None, None], order=1)
    first, second = ranking([everywhere, seldom], [everywhere.candidate.sha256])
    assert (first["shapes"], first["of_shapes"], first["why"]) == (6, 6, "")
    assert (second["shapes"], second["of_shapes"]) == (2, 6)
    assert round(second["geomean_speedup"], 6) == 1.6


def test_a_winner_without_the_best_mean_says_why_it_is_delivered() -> None:
    short, long = entry("short", 1.50, lines=5), entry("long", 1.51, lines=50, order=1)
    rows = ranking([long, short], delivered([long, short]))
    assert rows[0]["sha256"] == short.candidate.sha256
    assert rows[0]["why"] == "delivered because it is as fast as long within 2% and is the shorter file"

    thrifty = replace(short, relative_joules=0.5)
    rows = ranking([replace(long, relative_joules=0.9), thrifty], [thrifty.candidate.sha256])
    assert rows[0]["why"].endswith("within 2% and needs less energy")

    often = entry("often", 1.2, speedups=[1.3, 1.3, 1.3, 1.3, 0.7, 0.7])
    seldom = entry("seldom", 1.2, speedups=[0.8, 0.8, 0.8, 0.8, 9.0, 9.0], order=1)
    members = delivered([often, seldom])
    rows = ranking([seldom, often], members)
    assert members[0] == rows[0]["sha256"] == often.candidate.sha256
    assert rows[0]["why"] == "delivered for most of the shapes; seldom runs at others"

    uneven = entry("uneven", 1.5, speedups=[4.0, 4.0, 4.0, 4.0, 0.5, 0.5])
    steady = entry("steady", 1.2, order=1)
    rows = ranking([uneven, steady], [steady.candidate.sha256])
    assert "uneven is not confidently faster" in rows[0]["why"]
    rows = ranking([uneven, steady], [steady.candidate.sha256], {uneven.candidate.sha256})
    assert rows[0]["why"] == "delivered because uneven was not accepted as one file"


def test_the_last_choice_counts() -> None:
    assert last_ranking({}) == {}
    steps: dict[str, object] = {
        "ranking/1": [{"sha256": "a", "place": 1}],
        "ranking/2": [{"sha256": "b", "place": 1}, {"sha256": "a", "place": 2}],
    }
    assert last_ranking(steps)["a"]["place"] == 2
