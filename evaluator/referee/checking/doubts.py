"""Where the float64 oracle looks in a large output that differs from the reference's own: at the worst rows and at random ones."""

from __future__ import annotations

import random
import secrets
import sys
from dataclasses import dataclass

import torch

#: How many rows the oracle checks where values differ, and how many of them are those that differ most.
_DOUBTS, _WORST = 4, 2
#: Largest weight of a row in a random draw, where a row that differs by its own size has weight 1.
_MOST_WEIGHT = 1e3


@dataclass(frozen=True)
class Doubt:
    """Where the oracle should check a piece that differs from the reference's own.

    Attributes:
        gap: by how much the worst row differs.
        worst: the row (in the first dimension of the output) that differs most.
        drawn: another row, drawn with probability proportional to its difference.
    """

    gap: float
    worst: int
    drawn: int


def doubt_of(first: int, mine: torch.Tensor, theirs: torch.Tensor) -> Doubt:
    """The rows to check in a piece that begins with row ``first``.

    The row that differs most may be right, for example if a value lies between two equally valid roundings. It
    would then hide all other rows, so one more row is drawn.
    """
    gaps = _gaps_of_rows(mine, theirs)
    worst = int(gaps.argmax())
    # A row with NaN outweighs any other row, but not all of them together.
    weights = gaps.clamp(max=_MOST_WEIGHT).cumsum(0)
    at = float(weights[-1]) * secrets.randbelow(1 << 53) / (1 << 53)
    drawn = int(
        torch.searchsorted(
            weights, torch.full((1,), at, dtype=weights.dtype, device=weights.device), right=True
        )
    )
    return Doubt(float(gaps[worst]), first + worst, first + min(drawn, len(gaps) - 1))


def _gaps_of_rows(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """By how much each row (in the first dimension) differs.

    For floats: the largest difference relative to the values' size in the last dimension. For integers: how many
    values differ.
    """
    if not (mine.is_floating_point() or mine.is_complex()):
        return (mine != theirs).reshape(len(mine), -1).to(torch.float64).mean(dim=1)
    wide = torch.complex128 if mine.is_complex() else torch.float64
    magnitude = theirs.to(wide).abs()
    scale = magnitude + magnitude.square().mean(dim=-1, keepdim=True).sqrt() + sys.float_info.min
    gaps = torch.nan_to_num((mine.to(wide) - theirs).abs() / scale, nan=torch.inf)
    return gaps.reshape(len(mine), -1).amax(dim=1)


def chosen(doubtful: list[Doubt]) -> list[int]:
    """Rows for the oracle: those that differ most, and some others drawn at random."""
    ordered = sorted(doubtful, key=lambda doubt: doubt.gap, reverse=True)
    worst, others = [doubt.worst for doubt in ordered[:_WORST]], [doubt.drawn for doubt in ordered]
    drawn = random.SystemRandom().sample(others, min(len(others), _DOUBTS - _WORST))
    return list(dict.fromkeys([*worst, *drawn]))
