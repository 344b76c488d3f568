"""Joules per call of a candidate and of its best baseline: the processes replay, the referee reads the counter.

The counter belongs to the driver, and no role can change it. The load is the same chained blocks on fresh contents
that are timed, repeated for seconds, so calls cannot be skipped: one block in a few, which the candidate cannot
predict, is verified. The referee's own work between blocks is measured with blocks that compute nothing and
subtracted from both sides. Idle power is counted for the time of a call.

Opt-in, since it takes most of a minute per shape. It ranks nothing except members whose times tie.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from evaluator.devices.base import EnergyCounter
from evaluator.energy import LEAD_S, WINDOW_S, Step, compare, energy_of, idle_w
from evaluator.errors import EvaluatorError, RoleFailure, RoleReported
from evaluator.referee.measuring import measure, pairs
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control
from evaluator.referee.session.task_session import Progress, TaskSession
from evaluator.referee.sides.open_shape import Baseline
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol

#: Most shapes of an evaluation, at a minute each.
MOST_SHAPES = 3
QUADS = 2
#: One block in this many is verified: often enough to catch skipped calls within a window, rarely enough that the
#: energy of verification does not matter.
_VERIFIED = 8
_CAPTURE_SECONDS = 120.0
#: Blocks of the device's target length are short relative to the gaps between them.
_LONGER = 10
_MOST_CALLS = 1024


def measure_energy(
    session: TaskSession,
    candidate: CandidateRun,
    todo: Sequence[pairs.Timed],
    may_go_on: Callable[[], None],
    progress: Progress,
    *,
    counter: EnergyCounter | None = None,
    seconds: float = WINDOW_S,
    lead_s: float = LEAD_S,
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Energy at the shapes where the best baseline takes longest. The caller holds the device's clock.

    Args:
        session: of the task.
        candidate: found correct; its own process has ended.
        todo: shapes with their timings.
        may_go_on: called before each shape; may raise to stop.
        progress: told of each shape.
        counter: by default the device's.
        seconds, lead_s: see :mod:`evaluator.energy`.

    Returns:
        A verdict's ``energy`` (``counter`` and ``idle_w``, or ``why_not`` in words), and by a shape's key its
        ``shapes[].energy``.

    Raises:
        evaluator.referee.checking.correctness.Rejected: an output was wrong, or the candidate ran while stopped.
        RoleFailure: of the candidate, or of the control (by its name).
    """
    found = counter or session.fleet.device.energy_counter()
    if isinstance(found, str):
        return {"why_not": found}, {}
    session.process.freeze()
    try:
        idle = idle_w(found)
    except EvaluatorError as fault:
        return {"why_not": str(fault)}, {}
    # Chosen by the baseline's time, so that all candidates of a task are measured at the same shapes.
    longest = sorted(todo, key=lambda timed: -pairs.figure(timed.eager).baseline_us)[:MOST_SHAPES]
    each: dict[int, dict[str, Any]] = {}
    with pairs.Pair(session, candidate) as pair:
        pair.open([timed.shape for timed in longest], [timed.outcome for timed in longest])
        for done, timed in enumerate(longest):
            may_go_on()
            progress("energy", done, len(longest), f"measuring energy: {timed.shape.where}")
            try:
                each[timed.shape.key] = _at_shape(
                    session, timed, pair.run.open(timed.shape), pair.control, found, idle, seconds, lead_s
                )
            except RoleFailure:
                raise
            except EvaluatorError as fault:
                each[timed.shape.key] = {"why_not": str(fault)}
    return {"counter": found.name, "idle_w": idle}, each


def _at_shape(
    session: TaskSession,
    timed: pairs.Timed,
    side: Side,
    control: Control,
    counter: EnergyCounter,
    idle: float,
    seconds: float,
    lead_s: float,
) -> dict[str, Any]:
    shape = timed.shape
    captured = bool(timed.captured)
    timing = pairs.figure(timed.captured if captured else timed.eager)
    baseline = next(b for b in shape.baselines if b.name == timing.baseline)
    rival = control.side(shape, baseline)
    calls = _calls(session, side, rival, timing, shape.output_metas)
    if captured:
        try:
            for at, variant in ((side, "eager"), (rival, baseline.name), (rival, protocol.NULL)):
                at.capture(variant, calls, _CAPTURE_SECONDS)
        except RoleReported as failure:
            return {"why_not": f"its calls cannot be captured for so long: {failure.sentence}"}
    shape.side.process.freeze()
    for process in (side.process, rival.process):
        session.fleet.pin(process)
    checker = Checker(session, shape, side, timed.outcome, captured=captured)
    nothing = Baseline(protocol.NULL, "eager", baseline.threads)
    try:
        harness = energy_of(
            counter,
            _step(rival, nothing, calls, captured=captured),
            idle,
            seconds=seconds,
            lead_s=lead_s,
        )
        ratio = compare(
            counter,
            _step(rival, baseline, calls, captured=captured),
            _candidate_step(checker, calls),
            idle,
            quads=QUADS,
            seconds=seconds,
            lead_s=lead_s,
            harness_joules=harness.joules_above_idle,
            calls_us=(timing.baseline_us, timing.candidate_us),
        )
        checker.settle()
        checker.compare_pending()
        checker.kept.finish()
    finally:
        checker.kept.let_go()
    return {
        **ratio.as_fields(),
        "best_baseline": baseline.name,
        "launch": "captured" if captured else "eager",
        "harness_joules": harness.joules_above_idle,
    }


def _calls(
    session: TaskSession, side: Side, rival: Side, timing: measure.Timing, metas: tuple[Any, ...]
) -> int:
    """As many calls as fit, up to some milliseconds, so that gaps between blocks are short in comparison."""
    each_us = max(min(timing.candidate_us, timing.baseline_us), 1.0)
    wanted = math.ceil(_LONGER * session.fleet.device.block_target_us / each_us)
    return max(1, min(wanted, _MOST_CALLS, side.most_calls(metas), rival.most_calls(metas)))


def _step(side: Side, baseline: Baseline, calls: int, *, captured: bool) -> Step:
    def run() -> int:
        baseline.run(side, calls, captured=captured)
        return calls

    return run


def _candidate_step(checker: Checker, calls: int) -> Step:
    """Blocks of the candidate, some verified.

    Which ones is drawn before each block, and the candidate cannot tell.
    """

    def run() -> int:
        if secrets.randbelow(_VERIFIED) == 0:
            checker.run(calls)
        else:
            checker.side.timed(calls, captured=checker.captured)
        return calls

    return run
