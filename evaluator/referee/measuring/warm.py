"""The same measurement with all calls of a block on one slot, so that a call's inputs are already in the caches.

The chain refreshes that slot from call to call: call c gets the block's first content, refreshed c times. The
referee repeats these refreshes for the drawn call, and for the slot's final contents.

A refresh changes only part of the elements. If results hardly depend on it, they could be copied from the call
before, so there is no figure. If they do, updating an earlier result could still be cheaper than a new
computation. So nothing is ranked by warm figures, see docs/timing.md.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from evaluator.referee.measuring.captured import fastest, measure_captured
from evaluator.referee.measuring.measure import Effort, Timing, measure
from evaluator.referee.session.baseline_ranking import LONG_CALL_US
from evaluator.referee.session.control import Control
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side

EFFORT = Effort((6, 12), 0.01, 0.4)
#: Blocks of fewer calls would be half cold.
_FEWEST_CALLS = 4
#: Calls of the reference that are tested beforehand.
_LOOKS = 4


def measure_warm(
    session: TaskSession,
    shape: OpenShape,
    side: Side,
    control: Control,
    outcome: Outcome,
    cold: Timing,
) -> dict[str, Any]:
    """``shapes[].warm`` of the verdict: CUDA graph replays if both sides can be captured, otherwise eager calls.

    Raises:
        evaluator.referee.checking.correctness.Rejected: a timed output was wrong.
    """
    reason = _why_not(shape, side, outcome, cold)
    if reason:
        return {"why_not": reason}
    if side.gpu:
        captured = measure_captured(session, shape, side, control, outcome, cold, same_slot=True)
        if isinstance(captured, Timing):
            return {**captured.as_fields(), "launch": "captured"}
    rivals = control.rivals(shape)
    calls = math.ceil(
        session.fleet.device.block_target_us / max(min(cold.candidate_us, cold.baseline_us), 1.0)
    )
    calls = max(_FEWEST_CALLS, min(calls, *(at.most_calls(shape.output_metas) for _, at in rivals)))
    best = fastest(session, rivals, calls, same_slot=True)
    timing = measure(session, shape, side, [best], outcome, EFFORT, same_slot=True)
    return {**timing.as_fields(), "launch": "eager"}


def _why_not(shape: OpenShape, side: Side, outcome: Outcome, cold: Timing) -> str:
    """Why there is no figure, in words: calls on the same slot would not have to compute anew, or the caches matter little."""
    if cold.baseline_us >= LONG_CALL_US:
        return "a call of 20 ms or more hardly depends on whether its inputs are in the caches"
    if shape.large:
        return "its tensors do not fit into any cache"
    if not side.chained:
        return "no input may be changed from call to call, so that every call on one buffer would return the same"
    reference = shape.side
    if min(side.most_calls(shape.output_metas), reference.most_calls(shape.output_metas)) < _FEWEST_CALLS:
        return "its outputs are too large to keep those of several calls"
    side.process.freeze()
    block = reference.timed(_LOOKS, same_slot=True)
    if reference.aliased(block):
        return "an output is a view of an input, which is changed before the next call"
    metas = block.report.metas
    results = [reference.outputs(block, call) for call in range(_LOOKS)]
    # Buffers after a call (a number of batches) may be the same every time.
    for index in range(len(metas) - len(shape.inputs.call.buffers)):
        one = slice(index, index + 1)
        for before, after in pairwise(results):
            if reference.agree(after[one], metas[one], before[one], metas[one], outcome.bounds[one]):
                return "changed inputs hardly change the result, which could be copied from the previous call"
    return ""
