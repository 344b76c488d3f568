"""Speed in several pairs of fresh processes, which is how ``confirm`` measures.

Two processes that run the same code differ by 1 to 2 % throughout their lives, because of memory placement and
hash order. More quads in one pair only repeat that error more precisely. So each pair, a new candidate process and
a new control, measures every shape for a short time, and the interval is over pairs
(:func:`evaluator.timing.statistics.pair_estimate`). Pairs are added until every shape is settled or time is up.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import TracebackType
from typing import Any

from evaluator.content import distributions
from evaluator.referee.checking import large
from evaluator.referee.checking.correctness import cases, check, make_case, own_case
from evaluator.referee.measuring.captured import measure_captured
from evaluator.referee.measuring.measure import Effort, Timing, measure
from evaluator.referee.measuring.warm import measure_warm
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import Side
from evaluator.timing.cycles import confirmed
from evaluator.timing.statistics import PairEstimate, decide, pair_estimate

#: With fewer pairs, Student's t is so wide that nothing can be decided. More than the second number gains little.
LEAST, MOST = 3, 8
#: A shape needs no more pairs at this half-width of the interval (log). Graph replays vary less.
HALF_WIDTH, HALF_WIDTH_CAPTURED = 0.01, 0.005
#: Time for all pairs, for this many shapes. Beyond :data:`LEAST` pairs, none starts that would not end in time.
_SECONDS, _SHAPES = 20.0, 8
#: A baseline ranked within this factor of the best one may be the best one. This many rounds find out.
_NEAR, _ROUNDS = 1.2, 5


@dataclass
class Timed:
    """One shape in all pairs.

    Attributes:
        shape: where.
        outcome: what the correctness checks saw there.
        eager: one timing per pair.
        captured: the same for CUDA graph replays.
        why_not: why there are none, in words; empty if there are, or if it was not tried.
        warm: the verdict's ``warm``, from the first pair alone; nothing is ranked by it.
    """

    shape: OpenShape
    outcome: Outcome
    eager: list[Timing] = field(default_factory=list)
    captured: list[Timing] = field(default_factory=list)
    why_not: str = ""
    warm: dict[str, Any] | None = None
    #: Logs of times of the baselines close to the best one, in rounds; each round's mean is 0.
    rounds: list[list[float]] = field(default_factory=list)

    def wants(self, *, captured: bool) -> bool:
        """Whether another pair is needed, for eager calls or for replays."""
        if captured:
            return not self.why_not and not _settled(self.captured, HALF_WIDTH_CAPTURED)
        return not _settled(self.eager, HALF_WIDTH)


def time_in_pairs(
    session: TaskSession,
    candidate: CandidateRun,
    todo: Sequence[Timed],
    effort: Effort,
    step: Callable[[int, Timed], None],
    *,
    captured: bool,
    warm: bool = False,
) -> None:
    """Measures every shape of ``todo`` in several pairs. The caller holds the device's clock.

    Args:
        session: of the task.
        candidate: found correct; its own process has ended.
        todo: gets the timings.
        effort: for one shape in one pair.
        step: called before each measurement with the pair's number, from 0, and the shape; may raise to stop.
        captured: whether to time CUDA graph replays too.
        warm: whether the first pair also times calls whose inputs are in the caches.

    Raises:
        evaluator.referee.checking.correctness.Rejected: an output was wrong in one of its processes, or it ran
        while stopped.
        RoleFailure: of the candidate, or of the control (by its name).
    """
    ends_at = time.monotonic() + _SECONDS * max(1.0, len(todo) / _SHAPES)
    each_s = 0.0
    for number in range(MOST):
        left = [t for t in todo if t.wants(captured=False) or (captured and t.wants(captured=True))]
        began = time.monotonic()
        if not left or (number >= LEAST and began + each_s * len(left) > ends_at):
            return
        with Pair(session, candidate) as pair:
            pair.open([timed.shape for timed in left], [timed.outcome for timed in left])
            # Each pair has its own order, because what ran before affects a shape's state.
            for timed in random.SystemRandom().sample(left, len(left)):
                step(number, timed)
                pair.measure(timed, effort, captured=captured)
                if warm and number == 0:
                    pair.measure_warm(timed)
        each_s = (time.monotonic() - began) / len(left)


class Pair:
    """A candidate's process and a control, both new.

    On a CPU, compiled baselines are loaded in the control too. On a GPU a process needs longer to import the
    compiler than for all of its timing, so they stay in the session's own process, and the interval says so.
    """

    def __init__(self, session: TaskSession, candidate: CandidateRun) -> None:
        self._session = session
        self.run = candidate.again()
        self.control = Control(session.fleet, session, compiled=not session.fleet.gpu)

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.close()
        self.control.close()

    def open(self, shapes: Sequence[OpenShape], outcomes: Sequence[Outcome]) -> None:
        """Starts both sides, opens the shapes on both in turn, and checks one call of the candidate at each.

        That call's content may be of any distribution. Timed calls use the task's own.
        """
        # The control gets a copy of the files that this one writes.
        self._session.process.freeze()
        # A fork server dies with the thread that started it, so start it here, in this thread.
        self._session.fleet.server("candidate")
        counts = {baseline.threads for shape in shapes for baseline in shape.rivals}
        with ThreadPoolExecutor(1 + len(counts)) as pool:
            controls = [pool.submit(self.control.start, threads) for threads in counts]
            self.run.start()
        for control in controls:
            control.result()
        for shape, outcome in zip(shapes, outcomes, strict=True):
            if secrets.randbelow(2):
                # The side that opens first gets memory that was used before, and so its own place in the caches
                # for the pair's lifetime.
                self._near(shape)
            side = self.run.open(shape)
            if shape.large:
                large.check(side, shape, outcome, ("task",))
                continue
            # The bounds of timed outputs come from a case of the task's own distribution.
            names = distributions.names(shape.inputs.tensors)
            name = secrets.choice(names) if outcome.bounds else names[0]
            case = make_case(shape, name)
            check(side, shape, [case or own_case(shape)], outcome)
            self._near(shape)
            self.control.rivals(shape)

    def check_more(self, timed: Timed) -> None:
        """Checks more calls of the candidate, as many as when it is judged."""
        side, shape = self.run.open(timed.shape), timed.shape
        if not shape.large:
            check(side, shape, cases(self._session, shape), timed.outcome)

    def measure(self, timed: Timed, effort: Effort, *, captured: bool) -> None:
        """Adds this pair's timings at a shape, if they are not settled yet."""
        session, shape, side = self._session, timed.shape, self.run.open(timed.shape)
        if timed.wants(captured=False):
            rivals = self._rivals(timed)
            timing = measure(session, shape, side, rivals, timed.outcome, effort)
            timed.eager.append(self._told(shape, timing))
        if captured and timed.wants(captured=True):
            last = timed.eager[-1]
            found = measure_captured(session, shape, side, self.control, timed.outcome, last)
            if isinstance(found, str):
                timed.why_not, timed.captured = found, []
            else:
                timed.captured.append(self._told(shape, found))

    def measure_warm(self, timed: Timed) -> None:
        """Adds this pair's timings of calls whose inputs are in the caches."""
        side, outcome = self.run.open(timed.shape), timed.outcome
        timed.warm = measure_warm(self._session, timed.shape, side, self.control, outcome, timed.eager[-1])

    def _near(self, shape: OpenShape) -> list[tuple[Baseline, Side]]:
        """The sides of baselines that were about as fast as the best one in the ranking."""
        best = shape.best
        return [
            (baseline, self.control.side(shape, baseline))
            for baseline in shape.working
            if baseline.threads == best.threads and baseline.median_us <= _NEAR * best.median_us
        ]

    def _rivals(self, timed: Timed) -> list[tuple[Baseline, Side]]:
        """The shape's rivals, with the first chosen again among those close to the best.

        They were ranked in an old process. All rounds so far count, so that luck in this pair does not choose the
        rival, and the blocks that time it do not either.
        """
        shape, near = timed.shape, self._near(timed.shape)
        first, *others = self.control.rivals(shape)
        if len(near) == 1:
            return [first, *others]
        calls = math.ceil(self._session.fleet.device.block_target_us / 2 / max(shape.best.median_us, 1.0))
        calls = max(1, min(calls, *(side.most_calls(shape.output_metas) for _, side in near)))
        for _, side in near:
            self._session.fleet.pin(side.process)
        for _ in range(_ROUNDS):
            logs = [math.log(baseline.run(side, calls).elapsed_ns) for baseline, side in near]
            timed.rounds.append([log - statistics.fmean(logs) for log in logs])
        middles = [statistics.median(logs) for logs in zip(*timed.rounds, strict=True)]
        return [near[middles.index(min(middles))], *others]

    def _told(self, shape: OpenShape, timing: Timing) -> Timing:
        """The timing with this pair's record."""
        baseline = next(b for b in shape.baselines if b.name == timing.baseline)
        fresh = self.control.side(shape, baseline).process is not self._session.process
        kept = {
            "speedup": timing.speedup,
            "quads": len(timing.log_ratios),
            "fresh_baseline": fresh,
            "counted": not timing.restless,
        }
        return replace(timing, pairs=(kept,))


def estimate(log_ratios: Sequence[float], pairs: Sequence[dict[str, Any]]) -> PairEstimate | None:
    """The combined estimate of a shape's pairs; None for a single pair.

    A pair with a restless baseline does not count, as long as enough others do: another program had the cores. The
    candidate cannot influence that.

    Args:
        log_ratios: of all quads, pair after pair.
        pairs: see :attr:`evaluator.verdict.ShapeResult.pairs`.
    """
    if len(pairs) < 2:
        return None
    ends = list(accumulate(pair["quads"] for pair in pairs))
    groups = [log_ratios[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    used = [entry for entry in zip(groups, pairs, strict=True) if entry[1]["counted"]]
    if len(used) < LEAST:
        used = list(zip(groups, pairs, strict=True))
    fresh = all(pair["fresh_baseline"] for _, pair in used)
    return pair_estimate([group for group, _ in used], same_baseline=not fresh)


def is_settled(estimated: PairEstimate, half_width: float) -> bool:
    """Whether pairs agree well enough to stop: on a figure, and on a decision."""
    _, low, high = estimated.interval
    return estimated.t975 * estimated.standard_error <= half_width and decide(low, high) != "undecided"


def figure(timings: Sequence[Timing]) -> Timing:
    """Combines all pairs of a shape: the mean over pairs with its interval, and medians of the times."""
    log_ratios = tuple(value for timing in timings for value in timing.log_ratios)
    pairs = tuple(pair for timing in timings for pair in timing.pairs)
    estimated = estimate(log_ratios, pairs)
    assert estimated is not None
    speedup, low, high = estimated.interval
    cycle_log_ratios, cycles = _in_cycles(timings, pairs)
    return Timing(
        baseline=statistics.mode(timing.baseline for timing in timings),
        baseline_us=statistics.median(timing.baseline_us for timing in timings),
        candidate_us=statistics.median(timing.candidate_us for timing in timings),
        speedup=speedup,
        ci95=(low, high),
        decision=confirmed(decide(low, high), cycles),
        log_ratios=log_ratios,
        disturbed=sum(timing.disturbed for timing in timings),
        clock=over_all([timing.clock for timing in timings]),
        cycle_log_ratios=cycle_log_ratios,
        cycles=cycles,
        pairs=pairs,
    )


def _in_cycles(
    timings: Sequence[Timing], pairs: Sequence[dict[str, Any]]
) -> tuple[tuple[float, ...], dict[str, Any] | None]:
    """Log ratios in cycles and their estimate, if the clock varied in any pair; otherwise empty and None."""
    if not any(timing.cycle_log_ratios for timing in timings):
        return (), None
    # Where the clock was constant, ratios of times are ratios of cycles.
    log_ratios = tuple(value for t in timings for value in t.cycle_log_ratios or t.log_ratios)
    estimated = estimate(log_ratios, pairs)
    assert estimated is not None
    speedup, low, high = estimated.interval
    return log_ratios, {"speedup": speedup, "ci95": [low, high]}


def over_all(clocks: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Lowest and highest clock in MHz over several measurements, and every reason for throttling."""
    known = [clock for clock in clocks if clock is not None]
    if not known:
        return None
    return {
        "sm_mhz": [min(clock["sm_mhz"][0] for clock in known), max(clock["sm_mhz"][1] for clock in known)],
        "reasons": sorted({reason for clock in known for reason in clock["reasons"]}),
    }


def _settled(timings: Sequence[Timing], half_width: float) -> bool:
    if sum(not timing.restless for timing in timings) < LEAST:
        return False
    figures = figure(timings)
    estimated = estimate(figures.log_ratios, figures.pairs)
    return estimated is not None and is_settled(estimated, half_width)
