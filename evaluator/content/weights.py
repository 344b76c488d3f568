"""Redraws weights before use, so that a candidate cannot rely on a fresh LayerNorm being the identity."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from evaluator.content.pools import Array
from evaluator.oracle.numbers import from_float64, is_inexact, to_float64


def redraw(name: str, values: Array, dtype: str, *, parameter: bool) -> Array:
    """New values for one entry of a state dict (flat, carrier dtype). Entries that are tables stay as they are.

    A parameter keeps its mean and spread; a constant one (ones, zeros) gets a spread. Running means and variances
    of normalization layers are drawn too, variances positive. Every other buffer may be a mask or an index table
    and is kept.
    """
    if not is_inexact(dtype) or values.size == 0:
        return values
    generator = np.random.default_rng(secrets.randbits(128))
    old = to_float64(values, dtype)
    if name.endswith("running_var"):
        new: Array = np.asarray(generator.uniform(0.5, 1.5, old.shape) * max(float(old.real.mean()), 1e-3))
    elif name.endswith("running_mean"):
        new = np.asarray(generator.normal(old.mean().real, 0.25, old.shape))
    elif parameter and np.isfinite(old).all():
        mean, spread = old.mean(), float(old.std())
        spread = spread if spread > 1e-6 * max(abs(mean), 1e-6) else 0.25
        noise = generator.normal(0.0, spread, old.shape)
        if np.iscomplexobj(old):
            noise = (noise + 1j * generator.normal(0.0, spread, old.shape)) / np.sqrt(2.0)
        new = mean + noise
    else:
        return values
    return from_float64(new, dtype)


def redraw_on_device(name: str, values: Any, dtype: str, *, parameter: bool) -> Any:
    """The same for an entry on a GPU, flat bytes."""
    import torch

    if not is_inexact(dtype) or not values.numel():
        return values
    old = values.view(getattr(torch, dtype))
    wide = torch.complex64 if old.is_complex() else torch.float32
    generator = torch.Generator(device=values.device).manual_seed(secrets.randbits(63))
    new = torch.empty(old.shape, dtype=wide, device=values.device)
    if name.endswith("running_var"):
        new.uniform_(0.5, 1.5, generator=generator).mul_(max(float(old.to(wide).mean().real), 1e-3))
    elif name.endswith("running_mean"):
        new.normal_(0.0, 0.25, generator=generator).add_(float(old.to(wide).mean().real))
    elif parameter and bool(torch.isfinite(old.to(wide)).all()):
        widened = old.to(wide)
        mean = complex(widened.mean()) if old.is_complex() else float(widened.mean())
        spread = float(widened.std(unbiased=False)) if widened.numel() > 1 else 0.0
        del widened
        spread = spread if spread > 1e-6 * max(abs(mean), 1e-6) else 0.25
        new.normal_(0.0, 1.0, generator=generator).mul_(spread).add_(mean)
    else:
        return values
    return new.to(old.dtype).view(torch.uint8)
