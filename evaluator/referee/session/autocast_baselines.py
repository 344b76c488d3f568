"""Baselines at the task's own precision tier: the reference under torch's autocast.

If a task allows 16-bit products, a candidate may use them, and a float32 baseline alone would not be a fair rival.
Autocast is what a user has for this. It counts only if its results pass the check for candidates: autocast rounds
more than the operands of products, and float16 overflows.
"""

from __future__ import annotations

from evaluator.baselines import MODES
from evaluator.referee.session.expectation import case_of, difference, own_result
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import CALL_SECONDS

#: Start of the reason why a working baseline does not count.
BEYOND = "its results are not within what the task allows: "


def drop_wrong(shape: OpenShape, baselines: list[Baseline]) -> None:
    """Marks loaded autocast baselines as failed if their results are outside the task's tolerance."""
    todo = [b for b in baselines if MODES[b.mode].autocast and not b.failure]
    if not todo:
        return
    if shape.large:
        for baseline in todo:
            baseline.failure = f"{BEYOND}results this large are not compared"
        return
    side = shape.side
    side.fill(1)
    case = case_of(shape, own_result(shape, "task", side.contents(0)))
    for baseline in todo:
        side.ready(CALL_SECONDS, threads=baseline.threads)
        side.write(0, case.contents)
        block = side.block(1, variant=baseline.name)
        wrong = difference(case, block.report.metas, side.outputs(block, 0))
        baseline.failure = f"{BEYOND}{wrong}" if wrong else ""
