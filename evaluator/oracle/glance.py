"""A quick look at an output: whether it agrees with the reference's own result, for which no oracle has to be asked."""

from __future__ import annotations

import math
import secrets
import sys

import numpy as np

from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import is_inexact

_SAMPLED_ELEMENTS, _CHUNK = 1 << 17, 2048


def agree(
    values: Array, own: Array, dtype: str, bounds: tuple[float, float], *, thorough: bool = False
) -> bool:
    """Whether flat values agree with the reference's within twice the bounds; the last word is the oracle's.

    Args:
        values: of the candidate, in the carrier of ``dtype``.
        own: of the reference.
        dtype: torch's name.
        bounds: of the relative error of an element, and of its root mean square.
        thorough: the bounds count once, and all is compared. Otherwise large host arrays are compared by random chunks,
            which nobody can know beforehand; on a device it is all in any case.
    """
    if not thorough and isinstance(values, np.ndarray) and values.size > _SAMPLED_ELEMENTS:
        generator = np.random.default_rng(secrets.randbits(64))
        starts = generator.integers(0, values.size - _CHUNK, _SAMPLED_ELEMENTS // _CHUNK)
        places = (starts[:, None] + np.arange(_CHUNK)).reshape(-1)
        values, own = values[places], own[places]
    xp = space(values)
    if not is_inexact(dtype):
        return bool((values == own).all())
    mine, theirs = xp.widen(values, dtype), xp.widen(own, dtype)
    finite = xp.isfinite(theirs)
    if not bool(finite.all()):
        infinite = (xp.isinf,) if xp.iscomplex(mine) else (xp.isposinf, xp.isneginf)
        for classify in (xp.isnan, *infinite):
            if bool((classify(mine) != classify(theirs)).any()):
                return False
        mine, theirs = mine[finite], theirs[finite]
    if xp.size(mine) == 0:
        return True
    bound, rms_bound = bounds
    slack = 1.0 if thorough else 2.0
    magnitude = xp.abs(theirs)
    scale = magnitude + math.sqrt(xp.mean(magnitude**2)) + sys.float_info.min
    with xp.quiet():
        errors = xp.abs(mine - theirs) / scale
        # A NaN among them is larger than nothing and smaller than nothing: it must not pass.
        if not bool((errors <= slack * bound).all()):
            return False
    return rms_bound == math.inf or math.sqrt(xp.mean(errors**2)) <= slack * rms_bound
