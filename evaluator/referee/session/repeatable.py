"""Checks that a reference agrees with itself. Otherwise it cannot serve as a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

from evaluator.errors import RoleFailure, RoleReported
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.compare import dense, widen
from evaluator.oracle.numbers import epsilon, is_inexact
from evaluator.referee.sides.device_side import DeviceSide
from evaluator.referee.sides.fingerprint import fingerprint
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.roles import protocol
from evaluator.roles.frames import TensorMeta

#: A reference may differ from itself in this share of an output's elements.
_CHANGED_SHARE = 0.01
_PART_ELEMENTS = 1 << 25
_COPIES = (
    "the caller's tensor is changed afterwards, and a candidate may not do that; work on a copy (x = x.clone(), x = x + r instead of "
    "x += r, inplace=False)"
)


def check_repeatable(side: Side) -> None:
    """Refuses a reference that changes its inputs, or whose second result for the same inputs differs.

    Candidates cannot be checked against such a reference, and no module that keeps the contract could replace it.
    Rounding in another order (atomic additions on a GPU) passes; random results change more than single elements.
    """
    outputs = []
    large = side.gpu and side.inputs.needs.large
    side.fill(1)  # use slot 1: an in-place activation changes nothing on data it has already processed
    given = _marks(side, large=large)
    for last in (False, True):
        side.ready(CALL_SECONDS)
        block = side.block(1)
        if not last and (changed := _changed(side, given, large=large)):
            raise RoleFailure(
                "task_rejected", f"forward() changes {changed} in place: {_COPIES}", role="reference"
            )
        # The last call's output stays in place: a copy may be gigabytes.
        in_place = last and large
        spans = cast(DeviceSide, side).claimed(block, 0) if in_place else side.outputs(block, 0)
        outputs.append((block.report.metas, spans))
    (metas, first), (_, second) = outputs
    for meta, before, after in zip(metas, first, second, strict=True):
        pairs = _pairs(before, after, meta, in_parts=large)
        if not all(_agrees(widen(a, meta.dtype), widen(b, meta.dtype), meta.dtype) for a, b in pairs):
            raise RoleFailure(
                "task_rejected",
                f"it returns different results for the same inputs: {_why(side)}",
                role="reference",
            )


def _why(side: Side) -> str:
    """Why a reference's results differ, and what to do about it."""
    try:
        seen = side.process.request_json(protocol.INSPECT, {"shape": side.key, "seconds": 0.0}, CALL_SECONDS)
    except RoleReported:
        seen = {}
    names = ", ".join(repr(str(name)[:60]) for name in seen.get("changed_state") or ())
    if names:
        return (
            f"forward() updates {names}, so each result depends on the calls before it; declare TRAINING = True (each call then starts "
            "from the same buffers, and their values afterwards are compared like an output), or move the update out of forward()"
        )
    if seen.get("random"):
        return (
            "it draws random numbers (dropout that does not ask self.training, torch.rand in forward()); draw them in get_inputs() and pass "
            "them as an input, or leave them out in eval mode"
        )
    return (
        "it keeps state between calls that is not a buffer (an attribute that forward() sets, a cache), or draws random numbers that "
        "torch.manual_seed does not control; make each result depend on the inputs alone"
    )


def _marks(side: Side, *, large: bool) -> list[Any]:
    """A record to detect later changes of the first slot's tensors: copies or, for large ones, sums."""
    if not large:
        return side.contents(0)
    return [fingerprint(span) for span in cast(DeviceSide, side).slot(0)]


def _changed(side: Side, given: list[Any], *, large: bool) -> str:
    """The inputs that have changed, in words; empty if none has."""
    if large:
        spans = cast(DeviceSide, side).slot(0)
        kept = [fingerprint(span, key) == (key, sum_) for span, (key, sum_) in zip(spans, given, strict=True)]
    else:
        now = side.contents(0)
        kept = [side.same([one], [other]) for one, other in zip(now, given, strict=True)]
    numbers = [str(number) for number, same in enumerate(kept, 1) if not same]
    return f"input{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""


def _pairs(before: Array, after: Array, meta: TensorMeta, *, in_parts: bool) -> Iterator[tuple[Array, Array]]:
    """The values of two spans, or pairs of parts of both."""
    if not in_parts:
        yield dense(before, meta), dense(after, meta)
        return
    each = _PART_ELEMENTS * meta.item_bytes
    for one, other in zip(before.split(each), after.split(each), strict=True):
        part = TensorMeta(meta.dtype, (len(one) // meta.item_bytes,), (1,))
        yield dense(one, part), dense(other, part)


def _agrees(first: Array, second: Array, dtype: str) -> bool:
    xp = space(first)
    if xp.size(first) != xp.size(second) or xp.size(first) == 0:
        return bool(xp.size(first) == xp.size(second))
    if not is_inexact(dtype):
        return bool(xp.mean(first != second) <= _CHANGED_SHARE)
    if bool((first == second).all()):
        return True
    finite = xp.isfinite(first) & xp.isfinite(second)
    before, after = xp.where(finite, first, 0.0), xp.where(finite, second, 0.0)
    magnitude = xp.abs(before)
    allowed = math.sqrt(epsilon(dtype)) * (magnitude + math.sqrt(xp.mean(magnitude**2)))
    changed = (xp.abs(after - before) > allowed) | (xp.isfinite(first) != xp.isfinite(second))
    return bool(xp.mean(changed) <= _CHANGED_SHARE)
