"""A quick look at an output: whether it agrees with the reference's own result, for which no oracle has to be asked."""

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


def agree(
    values: Array,
    own: Array,
    dtype: str,
    bounds: Bounds,
    shape: tuple[int, ...] | None = None,
) -> bool:
    """Whether flat values agree with the reference's own; what differs is not wrong until the oracle says so.

    Args:
        values: of the candidate, in the carrier of ``dtype``.
        own: of the reference.
        dtype: torch's name.
        bounds: what contents of the same distribution needed.
        shape: looks thoroughly, as the oracle does: at every element, errors relative to its row, within the usual bound.
            Otherwise twice the widest one counts, relative to the whole, and large host arrays are compared by random
            chunks, which nobody can know beforehand.
    """
    bound, rms_bound = bounds.usual, bounds.rms
    if shape is None:
        bound, rms_bound = 2.0 * bounds.widest, 2.0 * bounds.rms
        shape = (values.size,) if isinstance(values, np.ndarray) else tuple(values.shape)
        if isinstance(values, np.ndarray) and values.size > _SAMPLED_ELEMENTS:
            generator = np.random.default_rng(secrets.randbits(64))
            starts = generator.integers(0, values.size - _CHUNK, _SAMPLED_ELEMENTS // _CHUNK)
            places = (starts[:, None] + np.arange(_CHUNK)).reshape(-1)
            values, own, shape = values[places], own[places], (places.size,)
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
    with xp.quiet():
        errors = xp.abs(mine - theirs) / scale
        # Worded so that a NaN does not pass.
        if not bool((errors <= bound).all()):
            return False
    return rms_bound == math.inf or bool((row_rms(errors) <= rms_bound).all())
