"""Draws contents of named distributions on a GPU with the referee's own random numbers, large tensors in parts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import torch

from evaluator.devices.accelerator import GPU_TYPE

#: Elements that are copied to float64 at a time.
_PIECE_ELEMENTS = 1 << 25


def parts_of(elements: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts of a tensor along its first dimensions, each small enough that its float64 copies fit beside
    everything else.
    """
    if elements.numel() <= _PIECE_ELEMENTS or elements.dim() < 2:
        yield elements
        return
    rows = max(1, len(elements) * _PIECE_ELEMENTS // elements.numel())
    for part in elements.split(rows):
        yield from parts_of(part[0]) if len(part) == 1 else (part,)


class DeviceDraws:
    """Random numbers of the referee's own on the device, seeded by the operating system."""

    def __init__(self) -> None:
        self._generator = torch.Generator(device=GPU_TYPE).manual_seed(secrets.randbits(63))

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> torch.Tensor:
        numbers = torch.rand(shape, dtype=torch.float64, device=GPU_TYPE, generator=self._generator)
        return low + (high - low) * numbers

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, device=GPU_TYPE, generator=self._generator)
