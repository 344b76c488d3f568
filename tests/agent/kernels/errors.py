"""How far a result is off."""

from __future__ import annotations

import torch


def error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Of a whole tensor, relative to the exact one's norm."""
    return float((out - exact).norm() / exact.norm())
