"""Rewards: what they must be for every verdict there can be."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator.verdict import from_json
from rl.config import RewardPart
from rl.reward import (
    REJECTIONS,
    Score,
    lowered,
    measured_again,
    normalized,
    rounded_towards_one,
    score,
    shaping,
    speed_of,
    unpaid,
)
from tests.rl.verdicts import accepted, rejected, row

SHAPINGS = get_args(RewardPart.model_fields["shaping"].annotation)
Speeds = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)
Ways = st.builds(
    RewardPart,
    shaping=st.sampled_from(SHAPINGS),
    slower_penalty=st.just(0.2) | st.floats(0, 3),
    most_speedup=st.just(8.0) | st.floats(1.5, 100),
)
#: Some shapes that are surely slower, and others that are not.
Losers = st.lists(st.floats(0.02, 0.94), min_size=1, max_size=10)
Winners = st.lists(st.floats(0.1, 1), min_size=1, max_size=10)


def paid(settings: RewardPart, *speedups: float, decisions: tuple[str, ...] = ()) -> float:
    value = score(from_json(accepted(*speedups, decisions=decisions)), settings).value
    assert value is not None
    return value


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
    good, bad = score(from_json(accepted(*speeds)), settings), score(from_json(rejected(word)), settings)
    assert good.value is not None
    assert bad.value is not None
    assert good.value > bad.value == shaping(settings).floor
    assert bad.speedup is None


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.booleans()), min_size=1, max_size=20),
    Ways,
    st.integers(0, 19),
    st.floats(1.0, 10),
)
@example([(0.9, True), (2.0, False)], RewardPart(slower_penalty=1.2), 1, 3.0)
def test_a_shape_that_gets_faster_never_lowers_the_score(
    shapes: list[tuple[float, bool]], settings: RewardPart, place: int, factor: float
) -> None:
    def value(speeds: list[float]) -> float:
        sure = zip(speeds, shapes, strict=True)
        decisions = tuple("slower" if speed < 1 and certain else "undecided" for speed, (_, certain) in sure)
        return paid(settings, *speeds, decisions=decisions)

    speeds = [speed for speed, _ in shapes]
    better = list(speeds)
    better[place % len(speeds)] *= factor
    assert value(better) >= value(speeds) - 1e-9


@given(Speeds, Ways)
def test_shapes_that_are_not_visible_change_nothing(speeds: list[float], settings: RewardPart) -> None:
    document = accepted(*speeds)
    others = [row(99, 50.0, split=split) for split in ("validation", "held_out", "adversarial")]
    more = from_json({**document, "shapes": [*document["shapes"], *others]})
    assert score(more, settings) == score(from_json(document), settings)


@given(
    Losers, st.lists(st.floats(0.95, 100), max_size=10), Ways.filter(lambda one: one.slower_penalty > 0.001)
)
def test_shapes_that_are_slower_are_paid_less_than_the_same_ones_as_fast_as_the_baseline(
    losers: list[float], others: list[float], settings: RewardPart
) -> None:
    assert paid(settings, *losers, *others) < paid(settings, *[1.0] * len(losers), *others)


@given(Losers, Winners, st.floats(1, 50), Ways)
def test_the_same_mean_spread_evenly_pays_more_by_a_share_of_the_pay(
    losers: list[float], weights: list[float], mean: float, settings: RewardPart
) -> None:
    shapes = len(losers) + len(weights)
    won = shapes * math.log(mean) - math.fsum(map(math.log, losers))
    winners = [math.exp(won * weight / math.fsum(weights)) for weight in weights]
    even, uneven = paid(settings, *[mean] * shapes), paid(settings, *losers, *winners)
    above, penalty = even - unpaid(settings), settings.slower_penalty
    # The mean of each may be rounded to another hundredth.
    assert even - uneven >= min(penalty, 1) * above + penalty / 2 - 0.011 or uneven == shaping(settings).least


@pytest.mark.parametrize(
    ("way", "uneven", "even"),
    [
        ("log", [4.0] * 6 + [0.5] * 6, 1.0),
        ("log", [3.0] * 19 + [0.3], 1.6),
        ("clipped", [4.0] * 6 + [0.5] * 6, 1.2),
        ("clipped", [3.0] * 19 + [0.3], 2.2),
        ("clipped", [8.0] * 19 + [0.94], 6.0),
        ("clipped", [100.0] * 19 + [0.5], 7.0),
    ],
)
def test_giving_up_some_shapes_for_others_pays_no_more_than_this_speed_everywhere(
    way: str, uneven: list[float], even: float
) -> None:
    settings = RewardPart.model_validate({"shaping": way})
    assert paid(settings, *uneven) < paid(settings, *[even] * len(uneven))


@given(Losers, st.lists(st.floats(0.95, 100), max_size=10), st.floats(10, 100))
def test_who_is_slower_at_a_shape_stays_below_the_level_of_who_beats_eager_everywhere(
    losers: list[float], others: list[float], eager_us: float
) -> None:
    settings = RewardPart(shaping="levels")
    assert score(from_json(accepted(1.04, eager_us=30.0)), settings).value == 2
    found = score(from_json(accepted(*losers, *others, eager_us=eager_us)), settings).value
    assert found is not None
    assert found < 2


@given(st.lists(st.floats(0.4, 0.94), min_size=1, max_size=20), st.floats(0.8, 0.95), Ways)
def test_among_those_that_are_slower_everywhere_the_faster_is_paid_more(
    speeds: list[float], factor: float, settings: RewardPart
) -> None:
    default = RewardPart(shaping=settings.shaping)
    fast, slow = (paid(default, *(speed * by for speed in speeds)) for by in (1.0, factor))
    assert fast == slow if settings.shaping == "levels" else fast > slow


@given(st.lists(st.floats(0.95, 100), min_size=1, max_size=20), Ways)
def test_where_no_shape_is_slower_the_penalty_is_nothing(speeds: list[float], settings: RewardPart) -> None:
    without = settings.model_copy(update={"slower_penalty": 0.0})
    assert paid(settings, *speeds) == paid(without, *speeds)


def test_without_a_penalty_slower_shapes_count_like_others() -> None:
    uneven = [4.0, 0.5]  # 1.41 in the mean
    assert paid(RewardPart(shaping="clipped", slower_penalty=0), *uneven) == 1.41
    assert paid(RewardPart(shaping="log", slower_penalty=0), *uneven) == math.log(1.41)
    assert paid(RewardPart(shaping="levels", slower_penalty=0), *uneven) == 3.0


def test_a_shape_is_slower_when_the_referee_is_sure_or_much_is_lost() -> None:
    def slower(speedup: float, decision: str | None) -> bool:
        found = speed_of(from_json(accepted(2.0, speedup, decisions=("faster", decision or ""))))
        assert found is not None
        return found.slower > 0

    assert not slower(0.98, "undecided")
    assert slower(0.98, "slower")
    assert slower(0.7, "undecided")
    assert not slower(1.2, "faster")


@pytest.mark.parametrize("word", ["not_judged", "task_rejected"])
def test_faults_of_ours_are_none(word: str) -> None:
    found = score(from_json({**accepted(2.0), "verdict": word}), RewardPart())
    assert (found.value, found.speedup) == (None, None)


@pytest.mark.parametrize("speedup", [math.nan, math.inf, -2.0, True, "9", [1]])
def test_a_figure_that_makes_no_sense_is_not_paid(speedup: Any) -> None:
    verdict = accepted(2.0)
    verdict["shapes"][0]["speedup"] = speedup
    assert score(from_json(verdict), RewardPart()).value is None


def test_accepted_without_a_timing_is_none() -> None:
    assert score(from_json(accepted()), RewardPart()).value is None


def test_levels_are_over_eager_and_over_the_best_baseline() -> None:
    levels = RewardPart(shaping="levels")
    assert score(from_json(accepted(1.0)), levels).value == 1
    assert score(from_json(accepted(1.04, eager_us=30.0)), levels).value == 2
    assert score(from_json(accepted(1.06, eager_us=30.0)), levels).value == 3
    assert score(from_json(rejected("incorrect")), levels).value == -1


def test_the_log_of_a_speed_is_what_its_name_says_and_ends_at_the_limit() -> None:
    settings = RewardPart(shaping="log", most_speedup=4)
    assert score(from_json(accepted(2.0, 2.0)), settings).value == pytest.approx(math.log(2))
    assert score(from_json(accepted(50.0)), settings).value == pytest.approx(math.log(4))
    assert score(from_json(accepted(2.0)), RewardPart(shaping="clipped")).value == 2.0


def test_what_is_far_above_the_known_is_measured_again() -> None:
    settings = RewardPart()
    assert score(from_json(accepted(3.0)), settings, record=2.0).again == ""
    assert "above 3x" in score(from_json(accepted(3.02)), settings, record=2.0).again
    assert score(from_json(accepted(2.4)), settings, record=1.2).again == ""
    assert "2 times the record of 1.20x" in score(from_json(accepted(2.42)), settings, record=1.2).again
    # The baseline is a record, too.
    for record in (None, 0.5):
        assert score(from_json(accepted(2.0)), settings, record=record).again == ""
        assert (
            "2 times the record of 1.00x" in score(from_json(accepted(2.02)), settings, record=record).again
        )


def test_of_two_measurements_that_agree_the_lower_counts() -> None:
    settings = RewardPart()
    first, second = score(from_json(accepted(4.0)), settings), score(from_json(accepted(3.8)), settings)
    for pair in ((first, second), (second, first)):
        found = measured_again(*pair, settings)
        assert (found.value, found.speedup, found.again) == (second.value, 3.8, "")


def test_two_measurements_that_differ_count_nothing_and_a_rejection_counts() -> None:
    settings = RewardPart()
    first = score(from_json(accepted(4.0)), settings)
    apart = measured_again(first, score(from_json(accepted(1.2)), settings), settings)
    assert (apart.value, apart.speedup) == (None, None)
    assert "differ: 4.00x and 1.20x" in apart.why
    caught = measured_again(first, score(from_json(rejected("cheating")), settings), settings)
    assert caught.value == shaping(settings).floor
    assert measured_again(first, score(from_json(rejected("not_judged")), settings), settings).value is None


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
        assert unpaid(settings) == score(from_json(accepted(1.0)), settings).value
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
