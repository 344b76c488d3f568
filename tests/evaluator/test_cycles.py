"""The clock beside the times: what a quad's clock was, and decisions that do not hold in cycles."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest

from evaluator.devices import CpuDevice
from evaluator.devices.base import Clock
from evaluator.referee.measuring.measure import Timing, _estimate, _Quad
from evaluator.referee.measuring.pairs import figure
from evaluator.timing.cycles import Clocks, QuadClock, confirmed, in_cycles
from evaluator.timing.statistics import decide, median_interval

pytestmark = pytest.mark.alone

MS = 1_000_000


def reader(*mhz: int, reasons: tuple[str, ...] = (), cost_s: float = 0.0) -> Callable[[], Clock | None]:
    """A clock that shows these figures in turn, the last one forever."""

    def figures() -> Iterator[int]:
        yield from mhz
        while True:
            yield mhz[-1]

    coming = figures()

    def read() -> Clock:
        if cost_s:
            time.sleep(cost_s)
        return Clock(next(coming), reasons)

    return read


def quad(ours_ms: float, theirs_ms: float, clock: QuadClock) -> _Quad:
    return _Quad(10, [int(ours_ms * MS)] * 2, [int(theirs_ms * MS)] * 2, 0, None, clock)


def test_a_cpu_has_no_clock() -> None:
    clocks = Clocks(CpuDevice().clock)
    clocks.after_block(mine=True)
    clocks.after_block(mine=False)
    assert clocks.quad() == QuadClock()
    assert clocks.facts() is None
    assert not clocks.varied


def test_each_side_has_the_clock_of_its_own_blocks() -> None:
    clocks = Clocks(reader(1980, 1800, 1980, 1820, 1960, 1980))
    for mine in (True, False, True, False):
        clocks.after_block(mine=mine)
    seen = clocks.quad()
    assert not seen.moved
    assert seen.log_ratio == pytest.approx(math.log(1970 / 1810))
    assert clocks.varied
    assert clocks.facts() == {"sm_mhz": [1800, 1980], "reasons": []}
    # Blocks of one quad say nothing about the next one.
    assert clocks.quad().log_ratio == 0.0


def test_a_clock_that_stands_still_is_not_reported_unless_it_is_held_back() -> None:
    assert not Clocks(reader(1980)).varied
    assert Clocks(reader(1980, reasons=("sw_power_cap",))).varied


def test_a_clock_that_moved_within_a_quad_disturbs_it() -> None:
    clocks = Clocks(reader(1980, 1900))
    assert clocks.quad().moved
    assert quad(1.0, 2.0, QuadClock(moved=True)).disturbed
    assert not clocks.quad().moved


@pytest.mark.parametrize(
    ("cost_s", "mhz", "reasons", "readings"),
    [
        (0.0, (1980,), (), 1 + 2 * 5),
        (0.0002, (1980,), (), 1 + 5 + 1),
        (0.0002, (1980,), ("sw_power_cap",), 1 + 2 * 5),
    ],
    ids=["cheap", "dear", "dear, held back"],
)
def test_a_dear_reading_is_made_after_every_block_only_where_it_matters(
    cost_s: float, mhz: tuple[int, ...], reasons: tuple[str, ...], readings: int
) -> None:
    clocks = Clocks(reader(*mhz, reasons=reasons, cost_s=cost_s))
    for _ in range(2):
        for mine in (True, False, True, False):
            clocks.after_block(mine=mine)
        clocks.quad()
    assert len(clocks.seen) == readings


def test_what_the_clock_alone_won_is_undecided() -> None:
    """Three percent less time at a clock three percent higher: the same number of cycles."""
    quads = [quad(1.0, 1.03 + 0.0001 * i, QuadClock(log_ratio=math.log(1 / 1.03))) for i in range(8)]
    estimate = _estimate(quads)
    times = decide(*median_interval(estimate.log_ratios)[1:])
    cycles = in_cycles(estimate.cycle_log_ratios)
    assert times == "faster"
    assert cycles["speedup"] == pytest.approx(1.0, abs=2e-3)
    assert confirmed(times, cycles) == "undecided"
    assert confirmed("slower", cycles) == "undecided"


def test_what_holds_in_cycles_stays() -> None:
    estimate = _estimate([quad(1.0, 1.5, QuadClock(log_ratio=math.log(0.97)))] * 8)
    assert confirmed("faster", in_cycles(estimate.cycle_log_ratios)) == "faster"
    slower = _estimate([quad(1.5, 1.0, QuadClock(log_ratio=math.log(1.03)))] * 8)
    assert confirmed("slower", in_cycles(slower.cycle_log_ratios)) == "slower"


@pytest.mark.parametrize("decision", ["faster", "same", "slower", "undecided"])
def test_without_cycles_times_decide_alone(decision: str) -> None:
    assert confirmed(decision, None) == decision
    # Cycles never make a decision of their own.
    if decision in ("same", "undecided"):
        assert confirmed(decision, {"speedup": 2.0, "ci95": [1.9, 2.1]}) == decision


def timing(time_ratio: float, cycle_ratio: float | None) -> Timing:
    """A pair of processes whose quads all say nearly this."""
    spread = [0.0001 * i for i in range(6)]
    times = tuple(math.log(time_ratio) + value for value in spread)
    cycles = () if cycle_ratio is None else tuple(math.log(cycle_ratio) + value for value in spread)
    pair = {"speedup": time_ratio, "quads": 6, "fresh_baseline": True, "counted": True}
    return Timing(
        "eager",
        103.0,
        100.0,
        time_ratio,
        (1.0, 1.1),
        "faster",
        times,
        0,
        cycle_log_ratios=cycles,
        pairs=(pair,),
    )


def test_several_pairs_are_asked_in_cycles_together() -> None:
    won_by_the_clock = figure([timing(1.050, 1.000), timing(1.051, 1.001), timing(1.049, 1.0)])
    assert won_by_the_clock.decision == "undecided"
    assert won_by_the_clock.cycles is not None
    assert won_by_the_clock.cycles["speedup"] == pytest.approx(1.0, abs=2e-3)
    # Where a pair's clock stood still, its ratios of times are its ratios of cycles.
    held = figure([timing(1.050, 1.049), timing(1.051, None), timing(1.049, 1.05)])
    assert held.decision == "faster"
    assert len(held.cycle_log_ratios) == len(held.log_ratios) == 18
    still = figure([timing(1.050, None), timing(1.051, None), timing(1.049, None)])
    assert (still.decision, still.cycles, still.cycle_log_ratios) == ("faster", None, ())
