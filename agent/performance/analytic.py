"""A cost model of five prices: what a call, a wave, a step of a wave, a byte and a step anywhere cost, none below zero.

    time = a + b waves + c waves x steps + d bytes + e tiles x steps / units

The last term is what a kernel pays that spreads the steps of its tiles over all units (split-K, stream-K): where it explains
the times, waves do not count. Aligned shapes and others have prices of their own, since they run other kernels. Prices
minimize the relative error, because a time of 5 us matters as much as one of 5 ms; the size of the tile is that of a few
which fits the training shapes best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.performance.demand import Demand, Machine
from agent.performance.features import waves_of

#: Prices of shapes of one alignment are fitted if there are so many; otherwise those of all shapes serve.
_FEWEST = 8
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prices:
    """Microseconds per unit of each term, and which of a demand's tile sizes they are for.

    Attributes:
        tile: index of the tile size.
        per_term: of a call, a wave, a step of a wave, a byte, a step anywhere.
    """

    tile: int
    per_term: tuple[float, ...]


@dataclass(frozen=True)
class CostModel:
    """Prices for aligned shapes and for others."""

    aligned: Prices
    unaligned: Prices
    machine: Machine

    def predict_us(self, demands: Sequence[Demand]) -> Vector:
        """Microseconds per call at each shape."""
        return np.array([self._one(demand) for demand in demands], dtype=np.float64)

    def _one(self, demand: Demand) -> float:
        prices = self.aligned if demand.is_aligned else self.unaligned
        return float(np.dot(prices.per_term, _terms(demand, prices.tile, self.machine)))


def fit(demands: Sequence[Demand], times_us: Vector, machine: Machine) -> CostModel:
    """The prices that predict these times with the least relative error.

    Args:
        demands: of each measured shape; at least one.
        times_us: what a call took there, above 0.
        machine: where.
    """
    aligned = np.array([demand.is_aligned for demand in demands])
    every = _prices(demands, times_us, machine)

    def of(mask: npt.NDArray[np.bool_]) -> Prices:
        if mask.sum() < _FEWEST:
            return every
        chosen = [demand for demand, take in zip(demands, mask, strict=True) if take]
        return _prices(chosen, times_us[mask], machine)

    return CostModel(of(aligned), of(~aligned), machine)


def _prices(demands: Sequence[Demand], times_us: Vector, machine: Machine) -> Prices:
    from scipy.optimize import nnls

    found: list[tuple[float, Prices]] = []
    for tile in range(len(demands[0].tiles)):
        terms = np.array([_terms(demand, tile, machine) for demand in demands]) / times_us[:, None]
        # Bytes and waves differ by ten powers of ten; columns of one size keep the solver's arithmetic sound.
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-300)
        prices, residual = nnls(terms / scale, np.ones(len(demands)))
        found.append((float(residual), Prices(tile, tuple((prices / scale).tolist()))))
    return min(found, key=lambda entry: entry[0])[1]


def _terms(demand: Demand, tile: int, machine: Machine) -> tuple[float, ...]:
    tiles = demand.tiles[tile]
    waves = waves_of(tiles, machine)
    return (1.0, waves, waves * demand.steps, demand.moved_bytes, tiles * demand.steps / machine.units)
