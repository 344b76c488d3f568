"""Rewards: what they must be for every verdict there can be."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.config import RewardPart
from rl.reward import (
    REJECTIONS,
    Score,
    lowered,
    marginal_gain,
    measured_again,
    normalized,
    rounded_towards_one,
    score,
    shaping,
    speed_of,
    unpaid,
)
from tests.rl.verdicts import accepted, rejected, row

SHAPINGS = ("clipped", "log", "levels", "marginal")
Speeds = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)
Ways = st.sampled_from(SHAPINGS).map(lambda way: RewardPart(shaping=way))


@pytest.mark.parametrize(
    ("raw", "rounded"),
    [
        (1.118, 1.11),
        (0.992, 1.0),
        (1.11, 1.11),
        (0.9, 0.9),
        (1.0, 1.0),
        (1.009, 1.0),
        (0.981, 0.99),
        (2.999, 2.99),
    ],
)
def test_speeds_are_rounded_towards_one(raw: float, rounded: float) -> None:
    assert rounded_towards_one(raw) == rounded


@given(st.floats(0.01, 100))
def test_rounding_never_moves_away_from_one_nor_across_it_nor_far(raw: float) -> None:
    rounded = rounded_towards_one(raw)
    assert abs(rounded - 1) <= abs(raw - 1) + 1e-7
    assert (rounded - 1) * (raw - 1) >= -1e-9
    assert abs(rounded - raw) <= 0.01 + 1e-7


@given(Speeds, Ways, st.sampled_from(sorted(REJECTIONS)))
def test_every_accepted_candidate_gets_more_than_every_rejected_one(
    speeds: list[float], settings: RewardPart, word: str
) -> None:
    good, bad = score(accepted(*speeds), settings), score(rejected(word), settings)
    assert good.value is not None
    assert bad.value is not None
    assert good.value > bad.value == shaping(settings).floor
    assert bad.speedup is None


@given(Speeds, Ways, st.integers(0, 5), st.floats(1.0, 10))
def test_a_shape_that_gets_faster_never_lowers_the_score(
    speeds: list[float], settings: RewardPart, place: int, factor: float
) -> None:
    better = list(speeds)
    better[place % len(speeds)] *= factor
    before, after = score(accepted(*speeds), settings), score(accepted(*better), settings)
    assert before.value is not None
    assert after.value is not None
    assert after.value >= before.value - 1e-9


@given(Speeds, Ways)
def test_shapes_that_are_not_visible_change_nothing(speeds: list[float], settings: RewardPart) -> None:
    verdict = accepted(*speeds)
    more = {
        **verdict,
        "shapes": [
            *verdict["shapes"],
            *(row(99, 50.0, split=split) for split in ("validation", "held_out", "adversarial")),
        ],
    }
    assert score(more, settings, portfolio=[verdict]) == score(verdict, settings, portfolio=[verdict])


@pytest.mark.parametrize("way", SHAPINGS)
def test_a_shape_that_is_slower_costs_something(way: str) -> None:
    """The same geometric mean with one shape given up is worth less."""
    settings = RewardPart(shaping=way)
    even = score(accepted(1.5, 1.5), settings).value
    uneven = score(accepted(2.5, 0.9), settings).value
    assert even is not None
    assert uneven is not None
    if way == "marginal":  # there it may be used where it is fast
        free = score(accepted(2.5, 0.9), RewardPart(shaping=way, slower_penalty=0)).value
        assert free is not None
        assert free - uneven == pytest.approx(0.2 * 0.75)
    else:
        assert even - uneven >= 0.1


def test_a_shape_is_slower_when_the_referee_is_sure_or_much_is_lost() -> None:
    def slower(speedup: float, decision: str | None) -> bool:
        found = speed_of(accepted(2.0, speedup, decisions=("faster", decision or "")))
        assert found is not None
        return found.slower > 0

    assert not slower(0.98, "undecided")
    assert slower(0.98, "slower")
    assert slower(0.7, "undecided")
    assert not slower(1.2, "faster")


@pytest.mark.parametrize("word", ["not_judged", "task_rejected", "splendid", None, 3])
def test_faults_of_ours_and_unknown_words_are_none(word: Any) -> None:
    found = score({**accepted(2.0), "verdict": word}, RewardPart())
    assert (found.value, found.speedup) == (None, None)


@pytest.mark.parametrize("speedup", [math.nan, math.inf, -2.0, True, "9", [1]])
def test_a_figure_that_makes_no_sense_is_not_paid(speedup: Any) -> None:
    verdict = accepted(2.0)
    verdict["shapes"][0]["speedup"] = speedup
    assert score(verdict, RewardPart()).value is None


def test_accepted_without_a_timing_is_none() -> None:
    assert score(accepted(), RewardPart()).value is None


def test_levels_are_over_eager_and_over_the_best_baseline() -> None:
    levels = RewardPart(shaping="levels")
    assert score(accepted(1.0), levels).value == 1
    assert score(accepted(1.04, eager_us=30.0), levels).value == 2
    assert score(accepted(1.06, eager_us=30.0), levels).value == 3
    assert score(rejected("incorrect"), levels).value == -1


def test_the_log_of_a_speed_is_what_its_name_says_and_ends_at_the_limit() -> None:
    settings = RewardPart(shaping="log", most_speedup=4)
    assert score(accepted(2.0, 2.0), settings).value == pytest.approx(math.log(2))
    assert score(accepted(50.0), settings).value == pytest.approx(math.log(4))
    assert score(accepted(2.0), RewardPart(shaping="clipped")).value == 2.0


def test_the_marginal_gain_is_what_the_portfolio_lacks() -> None:
    has = [accepted(2.0, 1.0)]
    assert marginal_gain(accepted(2.0, 1.0), has) == pytest.approx(0.0)
    assert marginal_gain(accepted(0.5, 4.0), has) == pytest.approx(math.log(4) / 2, rel=0.02)
    assert marginal_gain(accepted(0.5, 0.5), []) == 0.0
    assert marginal_gain(accepted(3.0, 1.0), []) == pytest.approx(math.log(3) / 2)


def test_what_is_far_above_the_known_is_measured_again() -> None:
    settings = RewardPart()
    assert score(accepted(3.0), settings).again == ""
    assert "above 3x" in score(accepted(3.02), settings).again
    assert score(accepted(2.4), settings, record=1.2).again == ""
    assert "2 times the record of 1.20x" in score(accepted(2.42), settings, record=1.2).again
    assert score(accepted(2.9), settings, record=None).again == ""


def test_of_two_measurements_that_agree_the_lower_counts() -> None:
    settings = RewardPart()
    first, second = score(accepted(4.0), settings), score(accepted(3.8), settings)
    for pair in ((first, second), (second, first)):
        found = measured_again(*pair, settings)
        assert (found.value, found.speedup, found.again) == (second.value, 3.8, "")


def test_two_measurements_that_differ_count_nothing_and_a_rejection_counts() -> None:
    settings = RewardPart()
    first = score(accepted(4.0), settings)
    apart = measured_again(first, score(accepted(1.2), settings), settings)
    assert (apart.value, apart.speedup) == (None, None)
    assert "differ: 4.00x and 1.20x" in apart.why
    caught = measured_again(first, score(rejected("cheating"), settings), settings)
    assert caught.value == shaping(settings).floor
    assert measured_again(first, score(rejected("not_judged"), settings), settings).value is None


@given(st.none() | st.floats(-2, 3), st.none() | st.floats())
def test_a_doubt_only_ever_lowers(value: float | None, limit: float | None) -> None:
    found = lowered(Score(value, 1.0, "", ""), limit, "doubt").value
    if value is None:
        assert found is None
    else:
        assert found is not None
        assert found <= value


def test_what_is_unpaid_is_a_correct_candidate_without_a_gain() -> None:
    for way in SHAPINGS:
        settings = RewardPart(shaping=way)
        assert unpaid(settings) == score(accepted(1.0), settings).value
        assert unpaid(settings) > shaping(settings).floor


@given(st.lists(st.none() | st.floats(-3, 8), max_size=16))
def test_a_group_is_centered_clipped_in_order_and_keeps_its_nones(scores: list[float | None]) -> None:
    settings = RewardPart()
    found = normalized(scores, settings)
    assert [one is None for one in found] == [one is None for one in scores]
    known = [
        (one, two) for one, two in zip(scores, found, strict=True) if one is not None and two is not None
    ]
    assert all(-1.5 <= two <= 1.5 for _, two in known)
    values = [one for one, _ in known]
    for (one, two), (other, another) in zip(sorted(known), sorted(known)[1:], strict=False):
        assert two <= another or one == other
    if known and max(values) - min(values) < settings.least_spread:
        assert all(two == 0 for _, two in known)
    elif known:
        assert max(two for _, two in known) > 0 > min(two for _, two in known)


def test_one_outlier_among_eight_is_worth_no_more_than_the_clip() -> None:
    found = normalized([1.0] * 7 + [9.0], RewardPart())
    assert found[-1] == 1.5
    assert found[0] == pytest.approx(-0.378, abs=0.001)
    assert normalized([1.0, 1.005, None], RewardPart()) == [0.0, 0.0, None]
    assert normalized([1.0, 1.0], RewardPart(least_spread=0)) == [0.0, 0.0]


def test_distances_from_the_mean_can_be_left_in_units_of_the_score() -> None:
    assert normalized([1.0, 1.2, None], RewardPart(scaled=False)) == pytest.approx([-0.1, 0.1, None])
    assert normalized([0.0, 8.0], RewardPart(scaled=False)) == [-1.5, 1.5]
    assert normalized([1.0, 1.005], RewardPart(scaled=False)) == [0.0, 0.0]
