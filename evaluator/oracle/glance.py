"""A quick look at a timed output: whether it agrees with the reference's own result."""

from __future__ import annotations

import math
import secrets
import sys

import numpy as np

from evaluator.oracle.arrays import Array, space
from evaluator.oracle.numbers import is_inexact

_SAMPLED_ELEMENTS, _CHUNK = 1 << 17, 2048


def agree(values: Array, own: Array, dtype: str, bound: float) -> bool:
    """Whether flat values agree with the reference's within twice the bound of the relative error.

    Large host arrays are compared by random chunks, which nobody can know beforehand; on a device all is compared.
    """
    if isinstance(values, np.ndarray) and values.size > _SAMPLED_ELEMENTS:
        generator = np.random.default_rng(secrets.randbits(64))
        starts = generator.integers(0, values.size - _CHUNK, _SAMPLED_ELEMENTS // _CHUNK)
        places = (starts[:, None] + np.arange(_CHUNK)).reshape(-1)
        values, own = values[places], own[places]
    xp = space(values)
    if not is_inexact(dtype):
        return bool((values == own).all())
    mine, theirs = xp.widen(values, dtype), xp.widen(own, dtype)
    finite = xp.isfinite(theirs)
    if not bool((xp.isfinite(mine) == finite).all()):
        return False
    mine, theirs = mine[finite], theirs[finite]
    if xp.size(mine) == 0:
        return True
    magnitude = xp.abs(theirs)
    scale = magnitude + math.sqrt(xp.mean(magnitude**2)) + sys.float_info.min
    return bool((xp.abs(mine - theirs) <= 2.0 * bound * scale).all())
