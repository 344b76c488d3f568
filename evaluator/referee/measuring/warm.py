"""The same measurement with all calls of a block on one slot, so that a call's inputs are in the caches already.

The chain goes on refreshing that slot from call to call: what call c gets is the block's first content, refreshed c times. The
referee repeats these refreshes on its own side for the drawn call, and for what the slot holds in the end.

A refresh changes a part of the elements only. So results that hardly depend on it could be copied from the call before, and
there is no figure where they do. Where they do depend on it, somebody could still bring an earlier result up to date for
less than a new one takes: nothing is ranked by warm figures, see docs/timing.md.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from evaluator.referee.measuring.captured import fastest, measure_captured
from evaluator.referee.measuring.measure import Effort, Timing, measure
from evaluator.referee.session.control import Control
from evaluator.referee.session.expectation import Case
from evaluator.referee.session.outcome import Outcome
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side

EFFORT = Effort((6, 12), 0.01, 0.4)
_CALL_SECONDS = 60.0
#: Blocks of fewer calls would be half cold.
_FEWEST_CALLS = 4
#: Calls of the reference that are looked at beforehand.
_LOOKS = 4


def measure_warm(
    session: TaskSession,
    shape: OpenShape,
    side: Side,
    control: Control,
    outcome: Outcome,
    earlier: list[Case],
    cold: Timing,
) -> dict[str, Any]:
    """``shapes[].warm`` of the verdict: replays of a CUDA graph where both sides can be captured, eager calls elsewhere.

    Raises:
        evaluator.referee.checking.correctness.Rejected: a timed output was wrong.
    """
    reason = _why_not(shape, side, outcome)
    if reason:
        return {"why_not": reason}
    if side.gpu:
        captured = measure_captured(session, shape, side, control, outcome, earlier, cold, same_slot=True)
        if isinstance(captured, Timing):
            return {**captured.as_fields(), "launch": "captured"}
    rivals = control.rivals(shape)
    calls = math.ceil(
        session.fleet.device.block_target_us / max(min(cold.candidate_us, cold.baseline_us), 1.0)
    )
    calls = max(_FEWEST_CALLS, min(calls, *(at.most_calls(shape.output_metas) for _, at in rivals)))
    best = fastest(session, rivals, calls, same_slot=True)
    timing = measure(session, shape, side, [best], outcome, earlier, EFFORT, same_slot=True)
    return {**timing.as_fields(), "launch": "eager"}


def _why_not(shape: OpenShape, side: Side, outcome: Outcome) -> str:
    """In words, why a call on the same slot would not have to be computed anew; empty where it would."""
    if shape.large:
        return "its tensors fit into no cache"
    if not side.chained:
        return "no input may be changed from call to call, so that every call on one buffer would return the same"
    reference = shape.side
    if min(side.most_calls(shape.output_metas), reference.most_calls(shape.output_metas)) < _FEWEST_CALLS:
        return "its outputs are too large to keep those of several calls"
    side.process.freeze()
    reference.ready(_CALL_SECONDS, warm="eager", poison=0)
    reference.fill(1)
    block = reference.block(_LOOKS, _CALL_SECONDS, chained=True, same_slot=True)
    if reference.aliased(block):
        return "an output is a view of an input, which is changed before the next call"
    metas = block.report.metas
    results = [reference.outputs(block, call) for call in range(_LOOKS)]
    # Buffers after a call (a number of batches) may well be the same every time.
    for index in range(len(metas) - len(shape.inputs.call.buffers)):
        one = slice(index, index + 1)
        for before, after in pairwise(results):
            if reference.agree(after[one], metas[one], before[one], metas[one], outcome.bounds[one]):
                return "what is changed from call to call hardly changes the result, which could be copied from the call before"
    return ""
