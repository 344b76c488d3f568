"""What a shape's quads say: the harness's share, disturbed quads, and which rival counts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.referee.measuring import measure
from evaluator.referee.measuring.measure import (
    SharedClock,
    _estimate,
    _Quad,
    effort_for,
    quicker_than_nothing,
)
from evaluator.referee.session.baseline_ranking import guess_us
from evaluator.referee.sides.open_shape import Baseline

MS = 1_000_000


def quad(
    ours: float, theirs: float, null: float = 0.0, other: float | None = None, spread: float = 0.0
) -> _Quad:
    """Times in ms for blocks of 10 calls."""
    pair = [int(ours * MS), int(ours * (1 + spread) * MS)]
    return _Quad(10, pair, [int(theirs * MS)] * 2, int(null * MS), None if other is None else int(other * MS))


def test_the_harness_is_taken_off_both_sides() -> None:
    estimate = _estimate([quad(2.0, 3.0, null=1.0)] * 6)
    assert estimate.ours_us == pytest.approx(100)
    assert estimate.theirs_us == pytest.approx(200)
    assert estimate.log_ratios == pytest.approx([math.log(2)] * 6)


def test_the_harness_never_decides_more_than_half_of_a_figure() -> None:
    assert _estimate([quad(2.0, 6.0, null=1.9)] * 6).log_ratios == pytest.approx([math.log(5)] * 6)


def storm(count: int) -> list[_Quad]:
    """Quads in which something from outside met one block, of either side in turn."""
    return [
        _Quad(10, [MS, MS * 3 // 2], [9 * MS] * 2, 0) if at % 2 else _Quad(10, [MS] * 2, [9 * MS, 14 * MS], 0)
        for at in range(count)
    ]


def test_disturbed_quads_do_not_count_as_long_as_enough_others_do() -> None:
    calm = [quad(1.0, 2.0)] * 5
    assert _estimate(calm + storm(10)).log_ratios == pytest.approx([math.log(2)] * 5)
    assert len(_estimate(calm[:4] + storm(5)).log_ratios) == 9


def test_a_candidate_cannot_choose_which_quads_count() -> None:
    """Wherever it was slow it makes its second block differ from the first."""
    lucky, slow = [quad(1.0, 1.1)] * 6, [quad(1.1, 1.1, spread=0.3)] * 6
    assert len(_estimate(lucky + slow[:3]).log_ratios) == 6
    estimate = _estimate(lucky + slow)
    assert len(estimate.log_ratios) == 12
    assert min(estimate.log_ratios) < 0.0


def test_the_rival_that_is_faster_now_is_the_baseline() -> None:
    quads = [quad(1.0, 9.0, other=2.0), quad(1.0, 9.0)] * 5
    estimate = _estimate(quads)
    assert estimate.by_other
    assert estimate.log_ratios == pytest.approx([math.log(2)] * 5)
    assert not _estimate([quad(1.0, 2.0, other=3.0)] * 6).by_other


def test_disturbing_one_s_own_blocks_does_not_get_rid_of_the_other_rival() -> None:
    """A candidate that is restless whenever the other rival runs would be compared with a crippled baseline."""
    quads = [quad(1.0, 9.0, other=2.0, spread=0.5), quad(1.0, 9.0)] * 5
    estimate = _estimate(quads)
    assert estimate.by_other
    assert max(estimate.log_ratios) < math.log(2)


def test_what_came_late_is_the_candidates_time() -> None:
    estimate = _estimate([quad(1.0, 2.0).charged(MS)] * 6)
    assert estimate.log_ratios == pytest.approx([0.0] * 6)


def test_a_rival_that_is_only_luckier_is_not_the_baseline() -> None:
    lucky = [quad(1.0, 2.0, other=other) for other in (1.9, 2.1, 1.95, 2.05, 1.98, 2.02)]
    assert not _estimate(lucky).by_other


def test_a_guess_needs_no_second_call() -> None:
    assert guess_us(500_000, 900_000, 1) == 900.0
    assert guess_us(500_000, 2_000_000, 16) == 100.0
    # The short one had something to load: a call does not take next to nothing for that.
    assert guess_us(900_000_000, 41_600_000, 16) == 0.05 * 2_600


def test_nobody_is_accused_for_what_a_neighbor_did() -> None:
    """A candidate at 10 us, nothing at 9 us, and a neighbor that slows both, or one of them, for most of the time."""
    assert not quicker_than_nothing([(10, 9)] * 9)
    assert not quicker_than_nothing([(20, 18)] * 6 + [(10, 9)] * 3)
    assert not quicker_than_nothing([(10, 18)] * 7 + [(10, 9)] * 2)
    assert quicker_than_nothing([(4, 7)] * 8 + [(14, 7)])


def test_what_one_shape_leaves_of_the_clock_is_for_the_next_ones() -> None:
    effort = effort_for("screen", gpu=True)
    clock = SharedClock(2, gpu=True)
    first, second = clock.next(effort), clock.next(effort)
    assert first.max_seconds == pytest.approx(0.125, abs=0.02)
    # The first took no time at all, so the second may take as long as any, and the same again is not there.
    assert second.max_seconds == pytest.approx(0.25, abs=0.02)
    assert second.max_seconds <= effort.max_seconds
    on_a_cpu = effort_for("screen", gpu=False)
    assert SharedClock(2, gpu=False).next(on_a_cpu) == on_a_cpu


@pytest.mark.parametrize(
    ("each_us", "median_us", "calls"),
    [(2_600, 0.0, 4), (2_600, 2_600.0, 4), (2_600, 1.0, 819), (83_000, 0.0, 2), (83_000, 83_000.0, 2)],
)
def test_blocks_are_as_long_as_their_calls_need(each_us: int, median_us: float, calls: int) -> None:
    """Seen in A/A on an H100, whose baseline nobody has timed: blocks of 819 calls of 2.6 ms each, half a minute for a run of one
    second. And of an LSTM whose calls take 83 ms, 35 s went into ranking and A/A.
    """
    ran: list[int] = []

    class Played:
        """A side whose calls take so long."""

        side = SimpleNamespace(most_calls=lambda metas: 1024)

        @staticmethod
        def run(calls: int) -> Any:
            ran.append(calls)
            return SimpleNamespace(elapsed_ns=calls * each_us * 1000)

        @staticmethod
        def run_rival(*_: Any) -> None:
            return None

    session: Any = SimpleNamespace(fleet=SimpleNamespace(device=SimpleNamespace(block_target_us=2000.0)))
    first: Any = (Baseline("eager", "eager", 1, median_us), None)
    shape: Any = SimpleNamespace(output_metas=())
    played: Any = Played
    assert measure._calls(session, shape, played, first, measure.Effort((8,), 0.01, 1.0)) == calls
    assert sum(ran) * each_us < 400_000
