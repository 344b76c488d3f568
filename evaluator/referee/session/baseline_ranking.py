"""Ranks the ways to run the reference at a shape. All are timed in turn; remembered times are confirmed first."""

from __future__ import annotations

import math
import statistics

from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.sides.open_shape import Baseline, OpenShape

#: Calls in the shortest block. For calls from `LONG_CALL_US` on, a block of two is as informative.
_MIN_CALLS, _MIN_LONG_CALLS, LONG_CALL_US = 4, 2, 20_000
#: Calls in a block that estimates the time of one call.
_MANY_CALLS = 16
#: A baseline slower than the leader by this (log) after three rounds skips the next ones.
_CLEARLY_SLOWER = 0.35
_HOPELESS = 2.0
#: Baselines of long calls whose slowdowns (log) differ by less than this from round to round need no further rounds.
_SAME = 0.003
#: In a long block, the calls take at least this share of the time.
_LEAST_PART = 0.05
#: Rounds that confirm remembered times, and the allowed relative deviation.
_PROBES, _REMEMBERED_WITHIN = 5, 0.03


def still_holds(fleet: Fleet, shape: OpenShape) -> bool:
    """Whether a few new rounds confirm the leader's remembered time and its lead over the second."""
    rivals, side = shape.contenders[:2], shape.side
    leader = rivals[0]
    fleet.pin(side.process)
    calls = _calls(fleet, shape, leader.median_us)
    for baseline in rivals:
        baseline.run(side, calls)
    rounds = [{b.name: b.run(side, calls).elapsed_ns for b in rivals} for _ in range(_PROBES)]
    median_ns = statistics.median(turn[leader.name] for turn in rounds)
    null_ns = statistics.median(side.null_ns(calls, shape.output_metas) for _ in range(_PROBES))
    now_us = (median_ns - min(null_ns, median_ns / 2)) / calls / 1e3
    off = [abs(math.log(now_us / leader.median_us))]
    for baseline in rivals[1:]:
        lead_ns = median_ns * math.exp(_relative(rounds, baseline.name, [leader.name])) - median_ns
        remembered_ns = (baseline.median_us - leader.median_us) * calls * 1e3
        off.append(abs(lead_ns - remembered_ns) / median_ns)
    return max(off) <= _REMEMBERED_WITHIN


def rank(fleet: Fleet, shape: OpenShape) -> None:
    """Times every baseline in turn, round by round, so that drift affects all equally.

    The fastest get more rounds.

    A baseline that is not the fastest would flatter every candidate, so noise must not decide. All get blocks of
    the same length, close rivals are timed again, and times are compared only within a round. A round is shorter
    than the seconds for which a neighbor slows this machine.
    """
    rivals = shape.working
    all_rivals, side = list(rivals), shape.side
    fleet.pin(side.process)
    guesses_us = {baseline.name: _guess_us(shape, baseline) for baseline in rivals}
    least_us = min(guesses_us.values())
    calls = _calls(fleet, shape, least_us)
    rounds: list[dict[str, int]] = []
    nulls_ns: list[int] = []
    for count, keep in ((3, 3), (4, 2), (6, 1)):
        for _ in range(count):
            rounds.append({b.name: b.run(side, calls).elapsed_ns for b in rivals})
            nulls_ns.append(side.null_ns(calls, shape.output_metas))
            rivals = without_hopeless(rounds, rivals)
        names = [baseline.name for baseline in rivals]
        score = {name: _relative(rounds, name, names) for name in names}
        near = min(score.values()) + _CLEARLY_SLOWER
        rivals = sorted((b for b in rivals if score[b.name] <= near), key=lambda b: score[b.name])[:keep]
        if len(rivals) == 1 or (least_us >= LONG_CALL_US and settled(rounds, rivals)):
            break
    best = rivals[0]
    median_ns = statistics.median(turn[best.name] for turn in rounds)
    null_ns = min(statistics.median(nulls_ns), median_ns / 2)
    for baseline in all_rivals:
        ratio = math.exp(_relative(rounds, baseline.name, [best.name]))
        baseline.median_us = (median_ns * ratio - null_ns) / calls / 1e3
    times_us = {baseline.name: baseline.median_us for baseline in all_rivals}
    for baseline in shape.baselines:
        baseline.median_us = times_us.get(baseline.same_as, baseline.median_us)


def without_hopeless(rounds: list[dict[str, int]], rivals: list[Baseline]) -> list[Baseline]:
    """Drops baselines whose shortest block took more than `_HOPELESS` times as long as another's longest.

    Two threads of a tiny module can take 50 times as long as one, and every baseline gets blocks of as many calls
    as the fastest.
    """
    taken = {b.name: [turn[b.name] for turn in rounds] for b in rivals}
    most_ns = _HOPELESS * min(max(blocks) for blocks in taken.values())
    return [b for b in rivals if min(taken[b.name]) <= most_ns]


def settled(rounds: list[dict[str, int]], rivals: list[Baseline]) -> bool:
    """Whether each rival is as much slower than the first in every round.

    Three baselines of 338 ms a call, within 0.03 % of each other, took 42 s to rank (H200).
    """
    first, *others = (baseline.name for baseline in rivals)
    for name in others:
        logs = [math.log(turn[name] / turn[first]) for turn in rounds if name in turn and first in turn]
        if max(logs) - min(logs) > _SAME:
            return False
    return True


def _calls(fleet: Fleet, shape: OpenShape, each_us: float) -> int:
    """Calls in a block, for calls that take ``each_us``: half as long as when a candidate is timed."""
    most = shape.side.most_calls(shape.output_metas)
    calls = math.ceil(fleet.device.block_target_us / 2 / each_us)
    return max(min(fewest_calls(each_us), most), min(calls, most))


def _guess_us(shape: OpenShape, baseline: Baseline) -> float:
    """A first estimate of the time per call in us. It also warms the baseline up."""
    side = shape.side
    baseline.run(side, 1)
    short = baseline.run(side, 1).elapsed_ns
    many = calls_to_guess_by(short, side.most_calls(shape.output_metas))
    long = baseline.run(side, many).elapsed_ns
    return guess_us(short, long, many)


def fewest_calls(each_us: float) -> int:
    """Calls in the shortest block, where the baseline's calls take ``each_us``."""
    return _MIN_CALLS if each_us < LONG_CALL_US else _MIN_LONG_CALLS


def calls_to_guess_by(short_ns: int, most: int) -> int:
    """Calls in the second block for :func:`guess_us`, at most ``most``.

    The first block, of one call, took ``short_ns``.
    """
    return min(_MANY_CALLS if short_ns < LONG_CALL_US * 1e3 else _MIN_LONG_CALLS, most)


def guess_us(short_ns: int, long_ns: int, calls: int) -> float:
    """Microseconds per call from a block of one call and a block of ``calls``; at least 1.

    If outputs are so large that a block has one call, the estimate includes its start and end. If the short block
    took as long as the long one, it loaded something, and the estimate uses the long one alone.
    """
    if calls == 1:
        return max(long_ns / 1e3, 1.0)
    least_ns = _LEAST_PART * long_ns / calls
    return max((long_ns - short_ns) / (calls - 1), least_ns, 1e3) / 1e3


def _relative(rounds: list[dict[str, int]], name: str, rivals: list[str]) -> float:
    """Median over rounds of a variant's slowdown (log) against the rivals' geometric mean in the same round."""
    return statistics.median(
        math.log(turn[name]) - statistics.fmean(math.log(turn[rival]) for rival in rivals)
        for turn in rounds
        if name in turn
    )
