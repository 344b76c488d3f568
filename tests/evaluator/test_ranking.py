"""Which baselines are timed: near rivals always, those that cannot be the fastest not for long, the same code once."""

from __future__ import annotations

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.measure import secret_length
from evaluator.referee.session.baseline_ranking import fewest_calls, settled, without_hopeless
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from tests.attacks.test_candidates import TASK

pytestmark = pytest.mark.alone


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


def agrees(**blocks: list[int]) -> bool:
    baselines = [Baseline(name, "eager", 1) for name in blocks]
    rounds = [dict(zip(blocks, times, strict=True)) for times in zip(*blocks.values(), strict=True)]
    return settled(rounds, baselines)


def test_rounds_that_agree_settle_an_order_and_drift_of_all_does_not_disturb_it() -> None:
    assert agrees(eager=[338_000, 339_000, 345_000], compiled=[338_100, 339_050, 345_200])
    assert agrees(eager=[100_000, 100_100, 100_000], compiled=[200_000, 200_300, 200_100])
    assert not agrees(eager=[100_000, 100_100, 100_000], compiled=[100_500, 100_100, 99_900])


def test_blocks_are_short_where_one_side_s_calls_are_long() -> None:
    assert (fewest_calls(500.0), fewest_calls(19_000.0), fewest_calls(21_000.0)) == (4, 4, 2)


def test_no_candidate_knows_the_length_of_a_block_not_even_of_two_calls() -> None:
    for calls, lengths in ((2, {2, 3}), (4, {4, 5}), (20, set(range(20, 26)))):
        assert {secret_length(calls, 99) for _ in range(400)} == lengths
    assert {secret_length(calls, calls) for calls in (1, 2, 7) for _ in range(50)} == {1, 2, 7}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_max_autotune_is_timed_once_with_the_default_mode_where_it_generates_the_same(
    core: RefereeCore,
) -> None:
    with core.fleet.device_lock.shared():
        session = core.session(TASK)
        shape = session.open({"rows": 64, "cols": 96})
        session.compile_baselines([shape], lambda *_: None)
    with core.fleet.device_lock.exclusive():
        session.rank_baselines([shape], lambda *_: None)
    found = {baseline.name: baseline for baseline in shape.baselines}
    threads = core.fleet.threads
    assert found[f"compile_max_autotune/{threads}t"].same_as == f"compile_default/{threads}t"
    for baseline in shape.baselines:
        assert baseline.median_us > 0
        if baseline.same_as:
            assert baseline.median_us == found[baseline.same_as].median_us
    assert not any(baseline.same_as for baseline in shape.working)
    assert len({baseline.code for baseline in shape.working if baseline.code}) == len(shape.working) - 2


def test_other_code_other_threads_and_what_failed_are_the_same_as_nothing() -> None:
    shape = OpenShape({}, 1, None, None)  # type: ignore[arg-type]
    shape.baselines = [
        Baseline("failed", "compile_default", 1, failure="no compiler", code="a"),
        Baseline("one", "compile_default", 1, code="a"),
        Baseline("two", "compile_default", 2, code="a"),
        Baseline("other", "compile_max_autotune", 1, code="b"),
        Baseline("eager", "eager", 1),
        Baseline("eager too", "eager", 1),
        Baseline("again", "compile_max_autotune", 1, code="a"),
    ]
    shape.find_same()
    assert {one.name: one.same_as for one in shape.baselines if one.same_as} == {"again": "one"}
