"""Checks that a candidate sees weights that change after its first call: a training step, `load_state_dict`, an
update in place.

A candidate may derive weights at every call, or in `from_reference`, which a delivered module calls again when
weights change. Weights merged or packed once, at the first call, stay wrong.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

from evaluator.errors import RoleReported
from evaluator.referee.checking.correctness import call, first_wrong, fresh, values_of
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.expectation import case_of
from evaluator.referee.session.outcome import Rejected, RunState
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol

_SECONDS = 60.0
#: Number of changes. Each redraws part of the weights; together they cover all of them.
_QUIET_CHANGES = 3
_STATISTICS = ("running_mean", "running_var")
#: Most bytes of changed weights, drawn from all. Each process keeps their old values.
_MOST_BYTES = 256 << 20
#: Dtypes that every device can multiply in place.
_MULTIPLIED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_HINT = "compute derived weights in from_reference, or at every call"


def check(candidate: CandidateRun, shapes: Sequence[OpenShape], run: RunState) -> None:
    """Calls at one shape after weights changed: in place, only the statistics, and in part below version counters.

    A candidate that watches a few values of a weight, or one weight of several, misses changes elsewhere. A
    delivered module need not handle changes below version counters: it derives weights again when version counters
    change, and its documentation says so.

    Both processes have their original weights when this returns.

    Raises:
        Rejected: the result does not match the new weights.
    """
    able = [(shape, names) for shape in shapes if not shape.large and (names := _drawn(shape))]
    if not able:
        return
    shape, names = secrets.choice(able)
    side = candidate.sides[shape.key]
    statistics = [name for name in names if name.endswith(_STATISTICS)]
    quiet = (
        [] if candidate.candidate.delivered else [names[at::_QUIET_CHANGES] for at in range(_QUIET_CHANGES)]
    )
    for some in filter(None, [names, statistics, *quiet]):
        quietly = any(some is part for part in quiet)
        if some is not names:  # let it see the restored weights, which version counters report
            call(side, shape, fresh(shape), run.outcomes[shape.key])
        change = {"names": some, "seed": secrets.randbits(62), "quietly": quietly, "one_row": quietly}
        if _renew(side, change) != protocol.RENEWED:
            return  # derived in from_reference
        try:
            _look(side, shape, run, change)
        finally:
            if not side.process.dead:
                _renew(side, {**change, "seed": None})
                side.process.freeze()


def _look(
    side: Side,
    shape: OpenShape,
    run: RunState,
    change: dict[str, Any],
) -> None:
    reference, outcome = shape.side, run.outcomes[shape.key]
    _renew(reference, change)
    try:
        try:
            result = fresh(shape)
        except RoleReported:
            return  # the reference itself fails with such weights
        block, spans = call(side, shape, result, outcome)
        if side.agree(spans, block.report.metas, result.spans, result.metas, outcome.bounds, thorough=True):
            outcome.checks += 1
            return
        rejected = first_wrong(shape, case_of(shape, result), values_of(block, spans))
    finally:
        if not reference.process.dead:
            _renew(reference, {**change, "seed": None})
    if rejected:
        how = "below autograd's version counters" if change["quietly"] else "in place"
        sentence = f"after its weights changed {how}, {rejected.sentence}; {_HINT}"
        raise Rejected("incorrect", "stale_weights", sentence)
    outcome.checks += 1


def _drawn(shape: OpenShape) -> list[str]:
    """Names of redrawn weights (running statistics too), in random order, as many as fit.

    Excluded are buffers that were not redrawn (tables, masks), whose values a candidate may know, and tied
    weights, of which it may keep one copy or two.
    """
    every = shape.inputs.state
    tied = Counter(id(one.values) for one in every)
    updated = _updated(shape)
    entries = [
        one
        for one in every
        if (one.parameter or one.name.endswith(_STATISTICS) or one.name in updated)
        and (not one.kept or one.name in updated)
        and one.meta.dtype in _MULTIPLIED
        and tied[id(one.values)] == 1
    ]
    names, left_bytes = [], _MOST_BYTES
    for entry in secrets.SystemRandom().sample(entries, len(entries)):
        left_bytes -= entry.meta.span_bytes
        if left_bytes >= 0 and entry.meta.elements:
            names.append(entry.name)
    return names


def _updated(shape: OpenShape) -> set[str]:
    """Names of the buffers that forward changes in train mode.

    They have different values at the start of each call.
    """
    plan = shape.inputs.call
    if not plan.buffers:
        return set()
    result, initial = fresh(shape), {one.name: one for one in shape.inputs.state}
    after = zip(plan.buffers, result.spans[-len(plan.buffers) :], strict=True)
    return {name for name, span in after if not shape.side.same([span], [initial[name].values])}


def _renew(side: Side, change: dict[str, Any]) -> bytes:
    return side.process.request(protocol.RENEW, {"shape": side.key, **change}, _SECONDS)
