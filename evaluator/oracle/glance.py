"""A quick comparison of an output with the reference's own result, without the oracle."""

from __future__ import annotations

import math
import secrets
import sys

import numpy as np

from evaluator.oracle.arrays import Array, space
from evaluator.oracle.fills import are_fills, rms_of_rows
from evaluator.oracle.numbers import is_inexact
from evaluator.oracle.tolerance import Bounds, as_rows, row_rms

_SAMPLED_ELEMENTS, _CHUNK = 1 << 17, 2048
#: How much wider than in a check the bound of a timed call is. Beyond it the oracle decides.
_TIMED_SLACK = 2.0


def agree(
    values: Array,
    own: Array,
    dtype: str,
    bounds: Bounds,
    shape: tuple[int, ...],
    *,
    thorough: bool = False,
) -> bool:
    """Whether flat values agree with the reference's own.

    A difference counts as wrong only if the oracle confirms it.

    Errors are relative to their row, as in the oracle: a bound of one row means nothing in another one.

    Args:
        values: of the candidate, in the carrier of ``dtype``.
        own: of the reference.
        dtype: torch's name.
        bounds: what contents of the same distribution needed.
        shape: of the output.
        thorough: checks every element, within the usual bound. Otherwise the bound is doubled, and so is the error
            allowed for small elements; of large host arrays only random, unpredictable parts of rows are compared.
    """
    if not thorough and isinstance(values, np.ndarray) and values.size > _SAMPLED_ELEMENTS:
        values, own, shape = _drawn(values, own, shape)
    xp = space(values)
    if not is_inexact(dtype):
        return bool((values == own).all())
    if xp.size(values) == 0:
        return True
    mine, theirs = (as_rows(xp.widen(array, dtype), shape) for array in (values, own))
    finite = xp.isfinite(theirs)
    if not bool(finite.all()):
        infinite = (xp.isinf,) if xp.iscomplex(mine) else (xp.isposinf, xp.isneginf)
        for classify in (xp.isnan, *infinite):
            if bool((classify(mine) != classify(theirs)).any()):
                return False
        mine, theirs = xp.where(finite, mine, 0.0), xp.where(finite, theirs, 0.0)
    magnitude = xp.abs(theirs)
    scale = magnitude + rms_of_rows(magnitude, are_fills(theirs, bounds.fills)) + sys.float_info.min
    slack, least = (1.0, 0.0) if thorough else (_TIMED_SLACK, bounds.least)
    with xp.quiet():
        errors = xp.abs(mine - theirs)
        # Written so that a NaN does not pass.
        if not bool((errors <= slack * (bounds.usual * scale + least)).all()):
            return False
    return bounds.rms == math.inf or bool((row_rms(errors / scale) <= slack * bounds.rms).all())


def _drawn(values: Array, own: Array, shape: tuple[int, ...]) -> tuple[Array, Array, tuple[int, int]]:
    """Random parts of rows of two flat arrays, as rows of at most ``_CHUNK``."""
    width = shape[-1] if len(shape) > 1 else values.size
    piece = min(width, _CHUNK)
    count = _SAMPLED_ELEMENTS // piece
    generator = np.random.default_rng(secrets.randbits(64))
    rows = generator.integers(0, values.size // width, count)
    starts = rows * width + generator.integers(0, width - piece + 1, count)
    places = (starts[:, None] + np.arange(piece)).reshape(-1)
    return values[places], own[places], (count, piece)
