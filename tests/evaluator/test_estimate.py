"""What a shape's quads say: the harness's share, disturbed quads, and which rival counts."""

from __future__ import annotations

import math

import pytest

from evaluator.referee.measure import _estimate, _Quad

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


def test_disturbed_quads_do_not_count_as_long_as_enough_others_do() -> None:
    calm, storm = [quad(1.0, 2.0)] * 5, [quad(1.0, 9.0, spread=0.5)] * 5
    assert _estimate(calm + storm).log_ratios == pytest.approx([math.log(2)] * 5)
    assert len(_estimate(calm[:4] + storm).log_ratios) == 9


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
