"""The same measurement with every block replayed as a CUDA graph: a kernel's time without launch cost.

Calls below about 20 us cannot be timed one by one from the host, because a launch takes longer than the call. As
graph replays they can. The figure applies to users who capture the module in a CUDA graph.
"""

from __future__ import annotations

import math
import statistics

from evaluator.errors import RoleReported
from evaluator.referee.measuring.measure import EFFORT_CAPTURED, EFFORT_WARM, Timing, measure
from evaluator.referee.session.control import Control
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol

_CAPTURE_SECONDS = 120.0
#: Forms of the reference that a user could capture as they are.
_MODES = ("eager", "compile_default", "eager_autocast", "compile_autocast")
_MOST_CALLS, _FEWEST_CALLS = 1024, 4
_ROUNDS = 5


def measure_captured(
    session: TaskSession,
    shape: OpenShape,
    side: Side,
    control: Control,
    outcome: Outcome,
    eager: Timing,
    *,
    same_slot: bool = False,
) -> Timing | str:
    """Times captured calls against the fastest captured form of the reference.

    Returns a reason in words if it cannot.

    With ``same_slot`` all calls of a block use one slot, see :mod:`evaluator.referee.measuring.warm`.

    Raises:
        evaluator.referee.checking.correctness.Rejected: a timed output was wrong.
    """
    # Captured calls take at most as long as eager ones, and far less if those wait for the host.
    shortest_us = max(min(eager.candidate_us, eager.baseline_us) / 2, 1.0)
    effort = EFFORT_WARM if same_slot else EFFORT_CAPTURED
    calls = math.ceil(effort.blocks * session.fleet.device.block_target_us / shortest_us)
    calls = max(1, min(calls, _MOST_CALLS, side.most_calls(shape.output_metas)))
    if side.most_calls(shape.output_metas) < _FEWEST_CALLS:
        return "its outputs are too large to keep those of several blocks"
    try:
        side.capture("eager", calls, _CAPTURE_SECONDS, same_slot=same_slot)
        side.capture(protocol.NULL, calls, _CAPTURE_SECONDS, same_slot=same_slot)
    except RoleReported as failure:
        return f"it cannot be captured in a CUDA graph: {failure.sentence}"
    try:
        rivals = _capture_rivals(control, shape, calls, same_slot=same_slot)
        if not rivals:
            return "the reference cannot be captured in a CUDA graph"
        best, rival = fastest(session, rivals, calls, captured=True, same_slot=same_slot)
        rival.capture(protocol.NULL, calls, _CAPTURE_SECONDS, same_slot=same_slot)
        return measure(
            session, shape, side, [(best, rival)], outcome, effort, calls=calls, same_slot=same_slot
        )
    except RoleReported as failure:
        # Graphs keep what they allocate, so several take more than calls one by one; and memory cannot grow under a graph.
        if protocol.TOO_SMALL not in failure.sentence:
            raise
        return "memory is too small for the outputs of captured calls"


def fastest(
    session: TaskSession,
    rivals: list[tuple[Baseline, Side]],
    calls: int,
    *,
    captured: bool = False,
    same_slot: bool = False,
) -> tuple[Baseline, Side]:
    """The fastest of some baselines over a few rounds of blocks of this many calls."""
    if len(rivals) == 1:
        return rivals[0]
    for _, at in rivals:
        session.fleet.pin(at.process)
    elapsed_ns: dict[str, list[int]] = {baseline.name: [] for baseline, _ in rivals}
    for _ in range(_ROUNDS):
        for baseline, at in rivals:
            block = baseline.run(at, calls, captured=captured, same_slot=same_slot)
            elapsed_ns[baseline.name].append(block.elapsed_ns)
    return min(rivals, key=lambda entry: statistics.median(elapsed_ns[entry[0].name]))


def _capture_rivals(
    control: Control, shape: OpenShape, calls: int, *, same_slot: bool
) -> list[tuple[Baseline, Side]]:
    captured = []
    for baseline in shape.baselines:
        if baseline.mode not in _MODES or baseline.failure:
            continue
        side = control.side(shape, baseline)
        try:
            side.capture(baseline.name, calls, _CAPTURE_SECONDS, same_slot=same_slot)
        except RoleReported as failure:
            if protocol.TOO_SMALL in failure.sentence:
                # No figure is better than one against a slower form.
                return []
            continue
        captured.append((baseline, side))
    return captured
