"""Changes weights in place between calls, as a training step or a loaded checkpoint does."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch


def renew(shape: Any, names: list[str], seed: int | None, *, quietly: bool, one_row: bool = False) -> None:
    """Multiplies weights by factors of 0.5 to 1.5, one for each first index, or restores them.

    Args:
        shape: open in this process; its original weights are kept with it meanwhile.
        names: of the weights, in the state dict.
        seed: of the factors, the same in every process; None restores the weights.
        quietly: writes below autograd's version counters, as custom optimizers and some loaders do.
        one_row: all but one of the first indices keep their values, so that these do not reveal the change.
    """
    # Buffers that every call begins with are copied into the module from here.
    state = {
        **shape.model.state_dict(keep_vars=True),
        **dict(zip(shape.spec.buffers, shape.initial, strict=True)),
    }
    shape.exact.model = None  # the float64 twin is rebuilt
    if seed is None:
        # Version counters report it: what was derived from the changed weights must be rebuilt.
        with torch.no_grad():
            for name, values in shape.weights_before.items():
                state[name].copy_(values)
        shape.weights_before = {}
        return
    shape.weights_before = {name: state[name].detach().clone() for name in names}
    for name in names:
        weight = state[name]
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        rows = weight.shape[0] if weight.dim() else 1
        factors = generator.uniform(0.5, 1.5, rows).astype(np.float32)
        if one_row:
            changed = generator.integers(rows)
            factors[:] = np.where(np.arange(rows) == changed, generator.choice([0.5, 1.5]), 1.0)
        wide = torch.from_numpy(factors).to(weight.device).to(_real(weight))
        wide = wide.reshape([rows] + [1] * (weight.dim() - 1)) if weight.dim() else wide.reshape([])
        if quietly:
            weight.data.mul_(wide)
        else:
            with torch.no_grad():
                weight.mul_(wide)
        if name in shape.spec.buffers:
            weight.add_(0.1 * (wide - 1.0).abs())  # buffers often begin as zeros; variances stay positive


def _real(weight: torch.Tensor) -> torch.dtype:
    """What a weight can be multiplied by without changing its dtype."""
    return weight.real.dtype if weight.is_complex() else weight.dtype
