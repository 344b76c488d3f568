"""Speed at one shape: the candidate and the best baseline alternate, and every candidate block is verified.

A block is a chain of calls: the output of call i determines how the input of call i+1 is refreshed, so calls
cannot be computed ahead, batched or filled in late. The verified call is drawn after the process was stopped. The
harness's own cost (starting, stopping, chaining) is measured with blocks in the baseline's process that compute
nothing, and subtracted from both sides. The candidate cannot increase it.

The sides alternate strictly. In ABBA order one side runs twice in a row and finds its memory still in the caches.
The other never does, because its blocks are verified in between: a bias of 1.5 % against it, measured on two
cores.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evaluator.referee.measuring.ceiling import check_written
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.session.baseline_ranking import calls_to_guess_by, fewest_calls, guess_us
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import Side
from evaluator.timing.cycles import QuadClock, confirmed, in_cycles
from evaluator.timing.statistics import decide, median_interval


@dataclass(frozen=True)
class Effort:
    """How long to measure one shape.

    Attributes:
        looks: numbers of quads after which it may stop. Fixed in advance, since stopping at any time inflates
            errors.
        half_width: it stops at this half-width of the interval, relative.
        max_seconds: it stops here in any case.
        until_decided: it also stops when the interval says faster or slower and fewer than half of the quads were
            disturbed. During a disturbance, a few quads that agree by luck decide nothing.
        blocks: length of blocks, in multiples of what the device needs.
    """

    looks: tuple[int, ...]
    half_width: float
    max_seconds: float
    until_decided: bool = False
    blocks: float = 1.0


EFFORTS = {
    "screen": Effort((6, 12, 24), 0.015, 0.5, True),
    # For one pair of several, see :mod:`evaluator.referee.measuring.pairs`.
    "confirm": Effort((6,), 0.004, 0.4, blocks=2.0),
}
EFFORTS_GPU = {
    # Others wait for a GPU's clock, and host-bound calls would not settle in twice the time either.
    "screen": Effort((6, 12, 24), 0.015, 0.25, True),
    # Python between launches makes quads of 20 calls differ by 4 to 8 % (H200), far more than two processes do.
    "confirm": Effort((6, 12, 24), 0.008, 0.25, blocks=3.0),
}
#: CUDA graph replays in one of several pairs. Quads differ by 0.2 to 1 %.
EFFORT_CAPTURED = Effort((6, 12), 0.003, 0.2, blocks=2.0)
#: Calls with inputs in the caches; nothing is ranked by them.
EFFORT_WARM = Effort((6,), 0.003, 0.1, blocks=2.0)
#: Average per shape, with the gaps between shapes: about one second of the clock for eight shapes.
_SCREEN_MEAN_SECONDS_GPU = 0.125


def effort_for(name: str, *, gpu: bool) -> Effort:
    """What ``screen`` or ``confirm`` means on a device."""
    return (EFFORTS_GPU if gpu else EFFORTS)[name]


class SharedClock:
    """Divides the time for which a `screen` may hold a GPU's clock.

    Time that one shape does not need goes to the next ones.

    Args:
        shapes: how many are to be timed.
        gpu: on a CPU every shape may take all of its own time.
    """

    def __init__(self, shapes: int, *, gpu: bool) -> None:
        self._left = shapes
        self._ends_at = time.monotonic() + shapes * _SCREEN_MEAN_SECONDS_GPU if gpu else math.inf

    def next(self, effort: Effort) -> Effort:
        """The effort for the next shape."""
        seconds = max(self._ends_at - time.monotonic(), 0.0) / self._left
        self._left -= 1
        return replace(effort, max_seconds=min(effort.max_seconds, seconds))


#: A quad is disturbed if one side's two times differ by more than this (log): another program had the cores. The
#: rule compares each side with itself, never the ratio, so it favors neither. A neighbor on the same physical core
#: slows either side by a factor of 1.5 to 2 for 50 to 200 ms, so quads are shorter than that.
_DISTURBED = 0.15
#: How many quads the candidate alone may disturb, plus two for each that the baseline disturbs, before all of them
#: count.
_ONE_SIDED = 3
_MIN_QUADS = 5
#: No candidate can take less than this share of the time of a module that only makes one tensor. The second number
#: is how often that is measured again before a rejection. On a CPU no Python runs in that module: torch's fastest
#: function makes the tensor (0.5 us plus 0.4 for the loop). An honest C extension may take 0.3, and must pass.
_LEAST_SHARE, _LEAST_PAIRS = 0.75, 9
#: Two blocks (log) of a warm side differ by less than this. After this many pairs of blocks a side counts as warm
#: in any case.
_SETTLED, _MOST_UNSETTLED = 0.03, 5
#: Quads on a GPU that include blocks that compute nothing.
_NULLS = 6


@dataclass(frozen=True)
class Timing:
    """Result at one shape; times in microseconds per call."""

    baseline: str
    baseline_us: float
    candidate_us: float
    speedup: float
    ci95: tuple[float, float]
    decision: str
    log_ratios: tuple[float, ...]
    disturbed: int
    clock: dict[str, Any] | None = None
    #: The number of process pairs, and the result of each; see :mod:`evaluator.referee.measuring.pairs`.
    pairs: tuple[dict[str, Any], ...] = ()
    #: In most quads the baseline's own two times differed by more than the limit for a disturbance.
    restless: bool = False
    #: Log ratios in cycles, of the same quads; empty if the clock was constant.
    cycle_log_ratios: tuple[float, ...] = ()
    cycles: dict[str, Any] | None = None

    def as_fields(self) -> dict[str, Any]:
        """Fields for a verdict's ``captured`` and ``warm``."""
        return {
            "baseline": self.baseline,
            "baseline_us": self.baseline_us,
            "candidate_us": self.candidate_us,
            "speedup": self.speedup,
            "ci95": list(self.ci95),
            "decision": self.decision,
            "log_ratios": list(self.log_ratios),
            "pairs": list(self.pairs),
            "cycles": self.cycles,
        }


def measure(
    session: TaskSession,
    shape: OpenShape,
    side: Side,
    rivals: list[tuple[Baseline, Side]],
    outcome: Outcome,
    effort: Effort,
    calls: int | None = None,
    same_slot: bool = False,
    unseen: list[Checker] | None = None,
) -> Timing:
    """Times the candidate in ``side`` against the first of ``rivals``, or the second if that turns out faster.

    Args:
        session: of the task.
        shape: where.
        side: the candidate's.
        rivals: baselines with the sides where they are ready.
        outcome: what the correctness checks saw.
        effort: how long.
        calls: every block is a replay of a CUDA graph of this many calls; by default blocks are eager calls.
        same_slot: all calls of a block use one slot, so that its contents are in the caches.
        unseen: collects the remaining comparisons of timed outputs (:meth:`Checker.compare_pending`), which need
            no clock; None to run them here.

    Raises:
        Rejected: a timed output was wrong, or the candidate ran outside its turn.
    """
    captured = calls is not None
    checker = Checker(session, shape, side, outcome, captured=captured, same_slot=same_slot)
    try:
        timing = _measure(checker, rivals, effort, calls, unseen)
        checker.kept.finish()
        return timing
    finally:
        checker.kept.let_go()


def _measure(
    checker: Checker,
    rivals: list[tuple[Baseline, Side]],
    effort: Effort,
    calls: int | None,
    unseen: list[Checker] | None,
) -> Timing:
    """See :func:`measure`."""
    session, shape, side = checker.session, checker.shape, checker.side
    captured, same_slot = checker.captured, checker.same_slot
    (baseline, rival), *others = rivals
    shape.side.process.freeze()
    for process in (side.process, *(at.process for _, at in rivals)):
        session.fleet.pin(process)
    if calls is None:
        calls = _calls(session, shape, checker, rivals[0], effort)
    _settle(checker, rivals[0], calls)
    checker.keep_outputs()
    most = calls if captured else side.most_calls(shape.output_metas)
    candidate_first = bool(secrets.randbelow(2))
    learns_first = secrets.randbelow(2)
    quads: list[_Quad] = []
    cycles: dict[str, Any] | None = None
    # Clock readings during warm-up say nothing about a quad.
    checker.clocks.quad()
    null_ns = secret_calls = 0

    def nothing_ns(at: Side, *, again: bool) -> int:
        return at.null_ns(
            secret_calls,
            shape.output_metas,
            captured=captured,
            again=again,
            same_slot=same_slot,
        )

    started = time.monotonic()
    for look in effort.looks:
        while sum(not quad.disturbed for quad in quads) < look:
            if time.monotonic() - started > effort.max_seconds and len(quads) >= _MIN_QUADS:
                break
            # The harness's time is measured in the baseline's process. On a GPU, only in every second quad; in the
            # others the candidate's process does the same without being measured: there, the side that ran last is
            # 1 to 3 % quicker at short blocks. Which side begins is drawn, because with an odd number of quads one
            # side gets one more.
            learns = not side.gpu or len(quads) % 2 == learns_first
            if learns or not quads:
                secret_calls = secret_length(calls, most)
            # On a GPU this time is constant, so a few measurements are enough.
            again = not side.gpu or len(quads) < _NULLS
            if not learns and not quads:
                null_ns = nothing_ns(rival, again=True)
            # Values are compared in batches, usually of an even number of blocks. If it were always the same of a
            # quad's two blocks that is verified later, all comparisons would precede the same side's blocks: 0.7 %
            # for a matrix product under a power cap, whose clock recovers meanwhile (H200).
            late_one = secrets.randbelow(2)
            ours: list[int] = []
            theirs: list[int] = []
            for is_candidate in (candidate_first, not candidate_first) * 2:
                if is_candidate:
                    checker.watch.late_ns()
                    block = checker.run(secret_calls, later=len(ours) == late_one)
                    ours.append(block.elapsed_ns + checker.watch.late_ns())
                else:
                    theirs.append(checker.run_rival(rival, baseline, secret_calls).elapsed_ns)
                if learns != is_candidate and len(ours if is_candidate else theirs) == 1:
                    took_ns = nothing_ns(side if is_candidate else rival, again=again)
                    null_ns = null_ns if is_candidate else took_ns
            # The other rival is timed to notice if it is now the faster one. When it runs stays secret.
            few = 3 * sum(quad.other is not None for quad in quads) <= len(quads)
            asked = others if few or secrets.randbelow(2) else []
            other_ns = [checker.run_rival(side_of, b, secret_calls).elapsed_ns for b, side_of in asked]
            other = other_ns[0] if other_ns else None
            quads.append(_Quad(secret_calls, ours, theirs, null_ns, other, checker.clocks.quad()))
        estimate = _estimate([quad.charged(checker.watch.charge_ns) for quad in quads])
        ratios = estimate.log_ratios
        speedup, low, high = median_interval(ratios)
        cycles = in_cycles(estimate.cycle_log_ratios) if checker.clocks.varied else None
        if time.monotonic() - started > effort.max_seconds:
            break
        if len(ratios) < _MIN_QUADS:
            continue
        calm = 2 * sum(not quad.disturbed for quad in quads) >= len(quads)
        if (high - low) / 2 <= effort.half_width * speedup:
            break
        if effort.until_decided and calm and confirmed(decide(low, high), cycles) in ("faster", "slower"):
            break
    checker.settle()
    if unseen is not None and sum(other.pending_bytes for other in [*unseen, checker]) <= checker.most_bytes:
        unseen.append(checker)
    else:
        checker.compare_pending()
    check_written(
        checker, calls, [(time_ns + checker.watch.charge_ns, q.calls) for q in quads for time_ns in q.ours]
    )
    if not captured and not shape.inputs.call.backward and not shape.large:
        # Not between the quads: the side that ran last is quicker.
        _check_least(checker, rival, calls, quads)
    return Timing(
        others[0][0].name if estimate.by_other else baseline.name,
        estimate.theirs_us,
        estimate.ours_us,
        speedup,
        (low, high),
        confirmed(decide(low, high), cycles) if len(ratios) >= _MIN_QUADS else "undecided",
        tuple(ratios),
        sum(quad.disturbed for quad in quads),
        checker.clocks.facts(),
        restless=2 * sum(quad.restless for quad in quads) > len(quads),
        cycle_log_ratios=tuple(estimate.cycle_log_ratios) if cycles else (),
        cycles=cycles,
    )


def secret_length(calls: int, most: int) -> int:
    """The calls of a block: at least ``calls``, and more at random, so that a candidate cannot know where it ends.

    ``most`` limits it: a CUDA graph contains its own length, and large outputs leave room for one call.
    """
    return min(calls + secrets.randbelow(max(calls // 4, 1) + 1), most)


def _calls(
    session: TaskSession, shape: OpenShape, checker: Checker, first: tuple[Baseline, Side], effort: Effort
) -> int:
    """Calls in a block of the length that the device needs. Also warms both sides up."""
    baseline, rival = first
    most = checker.side.most_calls(shape.output_metas)
    checker.run(1)  # loads what later calls find
    short = checker.run(1)
    many = calls_to_guess_by(short.elapsed_ns, most)
    long = checker.run(many)
    checker.run_rival(rival, baseline, 1)
    each_us = guess_us(short.elapsed_ns, long.elapsed_ns, many)
    # Not of the candidate, which could make its first calls long. It has not been timed in A/A.
    fewest = fewest_calls(baseline.median_us or each_us)
    if baseline.median_us:
        each_us = min(each_us, max(baseline.median_us, 1.0))
    calls = math.ceil(effort.blocks * session.fleet.device.block_target_us / each_us)
    return max(min(fewest, most), min(calls, most * 4 // 5))


def _settle(checker: Checker, first: tuple[Baseline, Side], calls: int) -> None:
    """Alternates blocks of both sides until each takes as long as its previous one.

    This keeps compilation, tuning, loading and power-up in early calls out of the figures.
    """
    baseline, rival = first
    before: list[int] = []
    for _ in range(_MOST_UNSETTLED):
        now = [checker.run(calls).elapsed_ns, checker.run_rival(rival, baseline, calls).elapsed_ns]
        if before and all(abs(math.log(a / b)) <= _SETTLED for a, b in zip(now, before, strict=True)):
            return
        before = now


def _check_least(checker: Checker, rival: Side, calls: int, quads: list[_Quad]) -> None:
    """Rejects a call that is shorter than a module that only makes one tensor.

    Raises:
        Rejected: the candidate was faster repeatedly in direct comparison. So its calls were not made one after
            the other through Python, as they are when the baseline is timed.
    """

    def nothing_ns() -> int:
        return rival.least_ns(calls, same_slot=checker.same_slot)

    mine_ns = statistics.median(time_ns / quad.calls for quad in quads for time_ns in quad.ours)
    if mine_ns >= _LEAST_SHARE * nothing_ns() / calls:
        return
    # A neighbor on the core may have slowed that one block, which is not the candidate's fault.
    pairs = [(checker.run(calls).elapsed_ns, nothing_ns()) for _ in range(_LEAST_PAIRS)]
    checker.compare_pending()
    if quicker_than_nothing(pairs):
        least_ns = statistics.median(least for _, least in pairs) / calls
        sentence = (
            f"a call took {mine_ns / 1e3:.2f} us with the harness, but a module that only makes one tensor "
            f"takes {least_ns / 1e3:.2f} us: its calls are not made one by one"
        )
        raise Rejected("cheating", "quicker_than_nothing", sentence)


def quicker_than_nothing(pairs: list[tuple[int, int]]) -> bool:
    """Whether a candidate's blocks (first, in ns) are beyond doubt quicker than blocks that do nothing (second).

    All pairs but one must say so. Neighbors on the core slow either block, for longer than a pair takes.
    """
    return sum(mine < _LEAST_SHARE * least for mine, least in pairs) >= len(pairs) - 1


def _differ(times_ns: list[int]) -> bool:
    first, second = times_ns
    return abs(math.log(first / second)) > _DISTURBED


@dataclass(frozen=True)
class _Quad:
    """Two alternating blocks of either side, one that computes nothing, and one of the other rival, all of equal
    length.

    Times are in ns.
    """

    calls: int
    ours: list[int]
    theirs: list[int]
    null: int
    other: int | None = None
    clock: QuadClock = field(default_factory=QuadClock)

    @property
    def disturbed(self) -> bool:
        return self.restless or _differ(self.ours)

    @property
    def restless(self) -> bool:
        """Disturbed, by a rule that the candidate cannot influence."""
        return self.clock.moved or _differ(self.theirs)

    def charged(self, charge_ns: int) -> _Quad:
        """The same with ``charge_ns`` added to each of the candidate's blocks."""
        return replace(self, ours=[time_ns + charge_ns for time_ns in self.ours]) if charge_ns else self

    @property
    def us_per_call(self) -> tuple[float, float, float]:
        """Candidate, baseline and other rival (NaN if there is none), without the harness's own time."""
        # The harness's time has its own noise: never let it make up more than half of a figure.
        null = min(self.null, min(*self.ours, *self.theirs) / 2)
        return (
            (sum(self.ours) / 2 - null) / self.calls / 1e3,
            (sum(self.theirs) / 2 - null) / self.calls / 1e3,
            math.nan if self.other is None else max(self.other - null, self.other / 2) / self.calls / 1e3,
        )


@dataclass(frozen=True)
class _Estimate:
    """The result of the quads, against the faster of the rivals."""

    log_ratios: list[float]
    cycle_log_ratios: list[float]
    ours_us: float
    theirs_us: float
    by_other: bool


def _estimate(quads: list[_Quad]) -> _Estimate:
    """Log ratio of every undisturbed quad, and the medians of both sides' microseconds per call."""
    asked = [quad for quad in quads if quad.other is not None]
    # Use all quads: the candidate can partly influence which ones count as disturbed. Switch only if the other
    # rival is surely faster: picking the better of two equal ones picks luck, and made candidates look 3 % slower.
    by_other = len(asked) > 1 and median_interval([_advantage(quad) for quad in asked])[1] > 1.0
    counted = asked if by_other else quads
    used = [quad for quad in counted if not quad.disturbed]
    if len(used) < _MIN_QUADS or _picks(counted):
        used = counted
    times = np.array([quad.us_per_call for quad in used])
    theirs = times[:, 2 if by_other else 1]
    ours_us = float(np.median(times[:, 0]))
    log_ratios = np.log(theirs / times[:, 0])
    cycle_log_ratios = log_ratios + np.array([quad.clock.log_ratio for quad in used])
    return _Estimate(
        log_ratios.tolist(), cycle_log_ratios.tolist(), ours_us, float(np.median(theirs)), by_other
    )


def _picks(quads: list[_Quad]) -> bool:
    """Whether the candidate's blocks differ from themselves more often than the baseline's, beyond chance.

    A candidate can notice that it was slow and make such a quad not count by being even slower in its second
    block:
    a gain of 1 to 2 % where blocks vary by 3 to 5 %. Outside disturbances affect either side alike.
    """
    by_baseline = sum(quad.restless for quad in quads)
    return sum(quad.disturbed for quad in quads) - by_baseline > 2 * by_baseline + _ONE_SIDED


def _advantage(quad: _Quad) -> float:
    """By how much (log) the other rival was faster than the first."""
    _, first, other = quad.us_per_call
    return math.log(first / other)
