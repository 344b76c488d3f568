"""Whether a reference agrees with itself: nothing can be checked against one that does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from evaluator.errors import RoleFailure
from evaluator.oracle.arrays import Array, space
from evaluator.oracle.compare import dense, widen
from evaluator.oracle.numbers import epsilon, is_inexact
from evaluator.referee.side import Side
from evaluator.roles.frames import TensorMeta

if TYPE_CHECKING:
    from evaluator.referee.device_side import DeviceSide

_CALL_SECONDS = 60.0
#: A reference may differ from itself in this share of an output's elements.
_CHANGED_SHARE = 0.01
_PART_ELEMENTS = 1 << 25


def check_repeatable(side: Side) -> None:
    """Refuses a reference whose second result for the same inputs is another one: nothing can be checked against it.

    Rounding in another order (atomic additions on a GPU) passes; whatever is random changes more than single elements.
    """
    outputs = []
    large = side.gpu and side.inputs.needs.large
    for last in (False, True):
        side.ready(_CALL_SECONDS)
        block = side.block(1, _CALL_SECONDS)
        # What the last call returned stays where it is: a copy of it may be gigabytes.
        in_place = last and large
        spans = cast("DeviceSide", side).claimed(block, 0) if in_place else side.outputs(block, 0)
        outputs.append((block.report.metas, spans))
    (metas, first), (_, second) = outputs
    for meta, before, after in zip(metas, first, second, strict=True):
        pairs = _pairs(before, after, meta, in_parts=large)
        if not all(_agrees(widen(a, meta.dtype), widen(b, meta.dtype), meta.dtype) for a, b in pairs):
            raise RoleFailure(
                "task_rejected",
                "it returns different results for the same inputs (dropout in train mode, or random numbers of its "
                "own), so nothing can be checked against it",
                role="reference",
            )


def _pairs(before: Array, after: Array, meta: TensorMeta, *, in_parts: bool) -> Iterator[tuple[Array, Array]]:
    """The values of two spans, or parts of both in turn."""
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
    finite = xp.isfinite(first) & xp.isfinite(second)
    before, after = xp.where(finite, first, 0.0), xp.where(finite, second, 0.0)
    magnitude = xp.abs(before)
    allowed = math.sqrt(epsilon(dtype)) * (magnitude + math.sqrt(xp.mean(magnitude**2)))
    changed = (xp.abs(after - before) > allowed) | (xp.isfinite(first) != xp.isfinite(second))
    return bool(xp.mean(changed) <= _CHANGED_SHARE)
