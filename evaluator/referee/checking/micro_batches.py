"""Checks gradients when two forwards come before the first backward, as in gradient accumulation and
checkpointing.

A module that stores what backward needs on itself, not in autograd's context, computes the first gradient from the
second input.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from evaluator.errors import RoleReported
from evaluator.referee.checking.correctness import check_form, first_wrong, fresh, values_of
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.expectation import OwnResult, case_of
from evaluator.referee.session.outcome import Rejected, RunState
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side

_CALLS = 2
_HINT = "keep what backward needs with ctx.save_for_backward, not on the module"


def check(candidate: CandidateRun, shapes: Sequence[OpenShape], run: RunState) -> None:
    """Runs two forwards and then two backwards at one shape. Each call must give what it gives alone.

    If the reference itself cannot do that, the candidate is not checked.

    Raises:
        Rejected: a result differs.
    """
    able = [shape for shape in shapes if not shape.large and shape.side.slot_count >= _CALLS]
    if not able or not shapes[0].inputs.call.backward:
        return
    shape = secrets.choice(able)
    side, outcome = candidate.sides[shape.key], run.outcomes[shape.key]
    results = [fresh(shape) for _ in range(_CALLS)]
    try:
        block = _together(shape.side, results)
    except RoleReported:
        return
    if not all(_agrees(shape, shape.side, block, number, results, run) for number in range(_CALLS)):
        return
    block = _together(side, results)
    for number, result in enumerate(results):
        check_form(side, block, result)
        outcome.checks += 1
        if _agrees(shape, side, block, number, results, run):
            continue
        case = case_of(shape, result)
        if rejected := first_wrong(shape, case, values_of(block, side.outputs(block, number))):
            sentence = f"with two forwards before the first backward, {rejected.sentence}; {_HINT}"
            raise Rejected("incorrect", "shared_context", sentence)
    side.process.freeze()


def _together(side: Side, results: list[OwnResult]) -> Block:
    return side.call([result.contents for result in results], interleaved=True)


def _agrees(
    shape: OpenShape, side: Side, block: Block, number: int, results: list[OwnResult], run: RunState
) -> bool:
    result, bounds = results[number], run.outcomes[shape.key].bounds
    spans = side.outputs(block, number)
    return side.agree(spans, block.report.metas, result.spans, result.metas, bounds, thorough=True)
