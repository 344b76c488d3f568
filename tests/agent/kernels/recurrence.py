"""The states of a recurrence h = a * h + b for a scan, as generated code has them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def follow(a0, a1, b0, b1):  # type: ignore[no-untyped-def]
    return b0 + b1 * a0, b1 * a1


@triton.jit
def follow_along(x, y, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.associative_scan((x, y), AXIS, follow)
