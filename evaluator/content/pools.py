"""Fresh contents for every call, cheaply: rolled windows over a few secret draws of the task's own ``get_inputs``.

Drawing millions of random numbers per call would take longer than the calls. A tensor is rolled by a secret offset
that is no multiple of its rows, so that rows, tiles and sums differ from call to call while the distribution and the
legal range stay the task's own. Tensors whose order means something (sorted indices, masks) are never rolled.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluator.oracle.numbers import is_floating, to_float64
from evaluator.roles.chain import Chain
from evaluator.roles.frames import TensorMeta

Array = np.ndarray[Any, Any]
_POOL_ELEMENTS = 4096


@dataclass
class TensorInput:
    """One tensor argument: its description and the referee's private draws of it (flat, in the carrier dtype)."""

    meta: TensorMeta
    draws: list[Array]
    rollable: bool = False
    signed: bool = False
    pool: Array = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        first = self.draws[0]
        self._addresses = np.array([draw.ctypes.data for draw in self.draws], dtype=np.uint64)
        if not self.meta.contiguous or first.size < 2 or self.meta.dtype == "bool":
            return
        if is_floating(self.meta.dtype):
            values = to_float64(first[: 1 << 16], self.meta.dtype)
            self.rollable = bool(np.isfinite(values).all() and np.ptp(values) > 0)
            self.signed = self.rollable and bool((values < 0).any() and (values > 0).any())
        elif self.meta.dtype.startswith(("int", "uint")):
            steps = np.diff(first[: 1 << 16].astype(np.int64))
            self.rollable = bool((steps < 0).any() and (steps > 0).any())
        if self.rollable:
            places = np.random.default_rng(secrets.randbits(128)).integers(0, first.size, _POOL_ELEMENTS)
            self.pool = self.draws[secrets.randbelow(len(self.draws))][places]

    @property
    def refresh_stride(self) -> int:
        """Every how many elements the chain replaces one: at most about 2048 places per call, never all."""
        return max(61, self.meta.elements // 2048) | 1

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Contents never used before, as indices of draws and offsets in elements, one of either per content.

        Args:
            count: how many.
            generator: seeded from the operating system's randomness, and known to the referee alone.
        """
        draws = generator.integers(0, len(self.draws), count)
        if not self.rollable:
            return draws, np.zeros(count, dtype=np.int64)
        offsets = generator.integers(0, self.meta.elements, count)
        row = self.meta.shape[-1] if len(self.meta.shape) > 1 else 0
        if row > 1:
            offsets += offsets % row == 0
        return draws, offsets

    def write_all(self, chain: Chain, address: int, stride_bytes: int, draws: Array, offsets: Array) -> None:
        """Writes drawn contents to this process's memory, the first at ``address``, ``stride_bytes`` apart."""
        item_bytes = self.draws[0].itemsize
        rolls_bytes = (offsets * item_bytes).astype(np.uint64)
        chain.fill(address, stride_bytes, self._addresses[draws], rolls_bytes, self.draws[0].nbytes)

    def rebuild(self, draw: int, offset: int) -> Array:
        """One drawn content, in private memory."""
        return np.roll(self.draws[draw], -offset)
