"""A Triton kernel that does next to nothing, as it is and behind `triton.autotune`: what a launch costs the host."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tiny(x, rows, BLOCK: tl.constexpr):  # noqa: N803 - the field's own spelling
    """Writes zeros over the start of `x`."""
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 0.0, mask=at < rows)


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (32, 64)], key=["rows"])
@triton.jit
def autotuned(x, rows, BLOCK: tl.constexpr):  # noqa: N803 - the field's own spelling
    """The same, with its block chosen by Triton for each number of rows."""
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 0.0, mask=at < rows)
