"""A/A calibration: the reference, judged as a candidate in a candidate's process, must come out at 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evaluator.errors import RoleFailure, Unsteady
from evaluator.referee.checking.watch import WORK_OFF_TURN
from evaluator.referee.measuring import measure
from evaluator.referee.measuring.pairs import Pair, Timed
from evaluator.referee.measuring.verify import LATE_STOP
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.session.task_session import Progress, TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.timing.statistics import median_interval

#: A run whose A/A interval is entirely outside 1 +- this is void: something other than noise separates the two
#: sides.
LIMIT = 0.02
#: A median farther off than this (log) means that noise makes every figure meaningless, whatever the interval
#: says.
_NOISE = 0.2
_ATTEMPTS = 4
#: On a GPU no neighbor takes the core, so a few quads show a deviation of :data:`LIMIT`.
_EFFORT, _EFFORT_GPU = measure.Effort((8, 16), 0.01, 3.0), measure.Effort((6, 12), 0.02, 0.5)


def shape_for(session: TaskSession, timed: Sequence[OpenShape]) -> OpenShape:
    """The shape at which the reference is timed against itself.

    It is a timed shape. If all timed shapes are large, a third process would not fit, so it is the largest other
    shape. If there are only large shapes, it is the smallest of them.
    """
    small = [shape for shape in timed if not shape.large]
    if small:
        target_us = session.fleet.device.block_target_us / 4
        return min(small, key=lambda shape: abs(shape.best.median_us - target_us))
    others = [shape for shape in session.shapes.values() if not shape.large]
    if others:
        return max(others, key=lambda shape: shape.inputs.input_bytes)
    return min(timed, key=lambda shape: shape.inputs.input_bytes)


def gate(session: TaskSession, shape: OpenShape, progress: Progress) -> dict[str, Any]:
    """Median, interval, shape and variant of an A/A run that came out at 1.

    The caller holds the device's clock.

    Raises:
        Unsteady: it did not in several attempts; nothing can be timed here now.
    """
    median, low, high = math.nan, math.nan, math.nan
    for attempt in range(_ATTEMPTS):
        progress("aa", attempt, _ATTEMPTS, "measuring the reference against itself")
        log_ratios, variant = run(session, shape, _EFFORT_GPU if session.fleet.gpu else _EFFORT)
        median, low, high = median_interval(log_ratios)
        covers = low <= 1 + LIMIT and high >= 1 - LIMIT
        if covers and abs(math.log(median)) <= _NOISE:
            return {"median": median, "ci95": [low, high], "dims": shape.dims, "variant": variant}
    raise Unsteady(
        "not_judged",
        f"the reference against itself came out at {median:.3f} [{low:.3f}, {high:.3f}] instead of 1: "
        "nothing can be timed on this machine now; stop other programs and try again",
    )


def run(session: TaskSession, shape: OpenShape, effort: measure.Effort) -> tuple[tuple[float, ...], str]:
    """Log ratios of one A/A run, eager against eager, and the name of that variant.

    Raises:
        RoleFailure: ``task_rejected`` if the reference does not agree with itself, ``not_judged`` if the machine
            is too busy to stop it in time.
    """
    fleet = session.fleet
    eager = next(b for b in session.every_baseline(shape) if b.mode == "eager" and b.threads == fleet.threads)
    session.prepare(shape.side, eager)
    saved, shape.baselines = shape.baselines, [eager]
    reference = CandidateRun(fleet, session, twin(session.task), name="reference")
    reference.expects = [shape]
    timed = Timed(shape, Outcome())
    try:
        with Pair(session, reference) as pair:
            pair.open([shape], [timed.outcome])
            pair.check_more(timed)
            pair.measure(timed, effort, captured=False)
    except Rejected as rejected:
        if rejected.finding.rule in (LATE_STOP, WORK_OFF_TURN):
            # A candidate is blamed for these because it could gain by them. The reference gains nothing against
            # itself: the machine was busy.
            raise Unsteady(
                "not_judged",
                "nothing can be timed on this machine now: when the reference was timed against itself, "
                f"{rejected.sentence}; stop other programs",
                role="reference",
            ) from None
        raise RoleFailure(
            "task_rejected",
            f"the reference does not agree with itself ({rejected.sentence}): it returns different results for the same inputs",
            role="reference",
        ) from None
    finally:
        shape.baselines = saved
    return timed.eager[0].log_ratios, eager.name
