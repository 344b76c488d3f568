"""Several pairs of processes: how often the rule is wrong about nothing, and how often it sees 2 %."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluator.errors import RoleReported
from evaluator.referee.measuring import captured
from evaluator.referee.measuring.measure import Timing
from evaluator.referee.measuring.pairs import HALF_WIDTH, LEAST, MOST, estimate, figure, is_settled
from evaluator.roles.protocol import TOO_SMALL
from evaluator.timing.statistics import decide, median_interval, pair_estimate, summarize, t975

#: What quads of one pair differ by (log), and how many a pair has; measured pairs have 6 to 12.
NOISE, QUADS = 0.006, 6

#: Draws so many quads of a pair that is new.
NewPair = Callable[[int], list[float]]


def pairs_of(truth: float, between: float, seed: int = 7) -> NewPair:
    """Pairs with a bias each, which stays as long as the pair lives."""
    generator = np.random.default_rng(seed)

    def new_pair(quads: int) -> list[float]:
        bias = math.log(truth) + generator.normal(0, between)
        return list(bias + generator.normal(0, NOISE, quads))

    return new_pair


def over_pairs(new_pair: NewPair) -> str:
    """What `confirm` does: pairs until they are settled, so many at most."""
    pairs = [new_pair(QUADS) for _ in range(LEAST)]
    while not is_settled(pair_estimate(pairs), HALF_WIDTH) and len(pairs) < MOST:
        pairs.append(new_pair(QUADS))
    return decide(*pair_estimate(pairs).interval[1:])


def over_quads(new_pair: NewPair) -> str:
    """What it did before: many quads of a single pair, and a bootstrap over them."""
    return decide(*median_interval(new_pair(48))[1:])


def decisions(rule: Callable[[NewPair], str], new_pair: NewPair, runs: int) -> list[str]:
    return [rule(new_pair) for _ in range(runs)]


def false_rate(rule: Callable[[NewPair], str], runs: int) -> float:
    made = decisions(rule, pairs_of(1.0, between=0.007), runs)
    return sum(word in ("faster", "slower") for word in made) / runs


def test_nothing_is_hardly_ever_called_something() -> None:
    assert false_rate(over_pairs, 1500) < 0.005


def test_quads_of_one_pair_would_call_it_something() -> None:
    """The same test finds the fault for which there are pairs."""
    assert false_rate(over_quads, 100) > 0.02


def test_two_percent_are_seen() -> None:
    made = decisions(over_pairs, pairs_of(1 / 1.02, between=0.002), 600)
    assert made.count("slower") / len(made) >= 0.95
    assert "faster" not in made


def test_the_interval_covers_the_truth_although_pairs_are_few() -> None:
    new_pair, hits = pairs_of(1.3, between=0.007), 0
    for _ in range(800):
        _, low, high = pair_estimate([new_pair(QUADS) for _ in range(LEAST)]).interval
        hits += low <= 1.3 <= high
    assert 0.94 <= hits / 800 <= 0.99


def test_pairs_that_agree_by_luck_are_not_believed_more_than_their_quads() -> None:
    quads = [-0.03, -0.02, -0.01, 0.01, 0.02, 0.03]
    alone = pair_estimate([quads, quads, quads])
    assert alone.standard_error * math.sqrt(3) >= 0.02 / math.sqrt(6)
    assert alone.degrees == 15


def test_a_baseline_that_was_not_new_widens_the_interval() -> None:
    pairs = [[0.0] * 6, [0.01] * 6, [0.02] * 6]
    fresh, same = pair_estimate(pairs), pair_estimate(pairs, same_baseline=True)
    assert fresh.standard_error == pytest.approx(0.01 / math.sqrt(3))
    assert same.standard_error == pytest.approx(0.01 * math.sqrt(1 + 1 / 3))
    assert same.log_ratio == fresh.log_ratio


def test_students_t_is_never_too_small() -> None:
    values = [t975(degrees) for degrees in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert values[1] == 4.303 and values[-1] > 1.96


def timing(ratio: float, *, quads: int = 6, restless: bool = False, fresh: bool = True) -> Timing:
    kept: dict[str, Any] = {
        "speedup": ratio,
        "quads": quads,
        "fresh_baseline": fresh,
        "counted": not restless,
    }
    ratios = (math.log(ratio),) * quads
    return Timing(
        baseline="eager",
        baseline_us=10.0,
        candidate_us=10.0 / ratio,
        speedup=ratio,
        ci95=(ratio, ratio),
        decision="undecided",
        log_ratios=ratios,
        disturbed=0,
        pairs=(kept,),
        restless=restless,
    )


def test_a_figure_is_the_mean_of_its_pairs_with_all_their_quads() -> None:
    whole = figure([timing(1.10, quads=6), timing(1.21, quads=12), timing(1.10 * 1.10 / 1.21, quads=7)])
    assert whole.speedup == pytest.approx(1.10)
    assert len(whole.log_ratios) == 25
    assert [pair["quads"] for pair in whole.pairs] == [6, 12, 7]
    assert whole.ci95[0] < 1.0 < 1.2 < whole.ci95[1]
    again = estimate(whole.log_ratios, whole.pairs)
    assert again is not None and again.interval[1:] == whole.ci95


def test_a_pair_in_a_storm_does_not_count_as_long_as_enough_others_do() -> None:
    calm = [timing(1.20), timing(1.21), timing(1.22)]
    storm = timing(9.0, restless=True)
    assert figure([*calm, storm]).speedup == pytest.approx(1.21, rel=1e-3)
    assert figure([*calm[:2], storm]).decision == "undecided"


def test_a_summary_of_pairs_has_their_interval() -> None:
    shapes = [
        figure([timing(2.0), timing(2.02), timing(1.98)]),
        figure([timing(2.0), timing(2.1), timing(1.9)]),
    ]
    estimates = [estimate(shape.log_ratios, shape.pairs) for shape in shapes]
    ratios = [shape.log_ratios for shape in shapes]
    summary = summarize(ratios, ["faster"] * 2, estimates)
    low, high = summary["geomean_ci95"]
    assert summary["geomean_speedup"] == pytest.approx(2.0, rel=2e-3)
    assert low < 1.95 and high > 2.05
    quads_alone = summarize(ratios, ["faster"] * 2)["geomean_ci95"]
    assert quads_alone[1] - quads_alone[0] < high - low


@pytest.mark.parametrize("where", ["null", "measured", "another fault"])
def test_graphs_for_which_memory_is_too_small_cost_a_figure_and_not_the_verdict(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Graphs of several forms keep what they allocate; a task was refused for it that had been timed call by call."""
    full = RoleReported("out_of_memory", f"{TOO_SMALL} for the outputs of timed calls", role="reference")
    other = RoleReported("runtime_error", "it raised", role="reference")

    class At:
        def most_calls(self, metas: object) -> int:
            return 8

        def capture(self, variant: str, calls: int, deadline_s: float, *, same_slot: bool) -> None:
            if where == "null" and self is rival:
                raise full

    def measured(*_: object, **__: object) -> Timing:
        raise full if where == "measured" else other

    side, rival = At(), At()
    monkeypatch.setattr(captured, "_capture_rivals", lambda *_, **__: [(None, rival)])
    monkeypatch.setattr(captured, "measure", measured)
    session = SimpleNamespace(fleet=SimpleNamespace(device=SimpleNamespace(block_target_us=1e3)))
    shape, eager = SimpleNamespace(output_metas=()), SimpleNamespace(candidate_us=50.0, baseline_us=50.0)

    def run() -> Timing | str:
        return captured.measure_captured(session, shape, side, None, None, eager)  # type: ignore[arg-type]

    if where == "another fault":
        with pytest.raises(RoleReported, match="it raised"):
            run()
    else:
        assert run() == "memory is too small for the outputs of captured calls"
