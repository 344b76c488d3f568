"""Baselines at the task's own precision tier: the reference under torch's autocast.

Where a task allows products in 16 bits, a candidate may use them, and a baseline in float32 would be no rival. Autocast is what
a user has for that. It counts only where its results pass as a candidate's would: autocast rounds more than the operands of
products, and float16 overflows.
"""

from __future__ import annotations

from evaluator.baselines import MODES
from evaluator.oracle.compare import compare, contract, dense
from evaluator.referee.session.expectation import Case, case_of, own_result
from evaluator.referee.sides.open_shape import Baseline, OpenShape

_CALL_SECONDS = 60.0
#: How the reason begins for which a working baseline does not count.
BEYOND = "its results are not within what the task allows: "


def drop_wrong(shape: OpenShape, baselines: list[Baseline]) -> None:
    """Marks those of the loaded baselines as failed whose autocast results the task's tolerance does not allow."""
    todo = [b for b in baselines if MODES[b.mode].autocast and not b.failure]
    if not todo:
        return
    if shape.large:
        for baseline in todo:
            baseline.failure = f"{BEYOND}results of this size are not compared for it"
        return
    side = shape.side
    side.fill(1)
    case = case_of(shape, own_result(shape, "task", side.contents(0)), [])
    for baseline in todo:
        wrong = _wrong(shape, baseline, case)
        baseline.failure = f"{BEYOND}{wrong}" if wrong else ""


def _wrong(shape: OpenShape, baseline: Baseline, case: Case) -> str:
    """What is wrong with a baseline's outputs for a content, in words."""
    side = shape.side
    side.ready(_CALL_SECONDS, threads=baseline.threads)
    side.write(0, case.contents)
    block = side.block(1, _CALL_SECONDS, variant=baseline.name)
    metas = block.report.metas
    if len(metas) != len(case.metas):
        return f"it returns {len(metas)} tensors, the reference returns {len(case.metas)}"
    for span, meta, wanted, expected in zip(
        side.outputs(block, 0), metas, case.metas, case.expected, strict=True
    ):
        words = contract(meta, wanted) or compare(dense(span, meta), expected).words
        if words:
            return words
    return ""
