"""Numbers that a runtime depends on, for models that learn; shared by all of them and by those of power.

What pays is known: alignment and the phase of tiles and waves. W. Joubert, E. Palmer and V. G. Melesse Vergara measured some
half a million products of matrices on GPUs and used divisibility by powers of two and the parity of tile counts as features
("Matrix Multiply Performance of GPUs on Exascale-class HPE/Cray Systems", 2022); raw sizes alone need very deep trees.

The order of a row, for a task with integer dimensions d1..dn:

    log2 of each dimension; its alignment tier (how often 2 divides it, at most 7); and its distance above the last power of two
    log2 of operations, of bytes, of operations per byte, of bytes over the shared cache, and of the steps inside a tile
    for each tile size: log2 of tiles, log2 of waves, how full the last wave is, and the share of the tiles that exists
    whether all rows are aligned
    one column per value of each dimension that is no integer (a dtype, say)
    what else is known of the shape, where something is

A dispatcher has features of its own, in integers that cost nothing at run time; these here may cost microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.performance.demand import Demands, Dims, Machine

Matrix = npt.NDArray[np.float64]
_DEEPEST_TIER = 7


@dataclass(frozen=True)
class Told:
    """What is known of a shape beside its sizes, such as which kernel a library runs there.

    Attributes:
        row: numbers for models that look for questions to ask (trees).
        few: those of them on which a smooth quantity depends, for models that measure distances.
    """

    row: tuple[float, ...]
    few: tuple[float, ...]


@dataclass(frozen=True)
class Encoder:
    """Turns shapes into rows of numbers.

    Attributes:
        integers: names of the integer dimensions, in order.
        choices: names of the others, each with the values that were seen.
        demands: what a shape asks of a machine.
        machine: the machine.
        told: what else is known of a shape; None where nothing is.
    """

    integers: tuple[str, ...]
    choices: tuple[tuple[str, tuple[Any, ...]], ...]
    demands: Demands
    machine: Machine
    told: Callable[[Dims], Told] | None = None

    @classmethod
    def of(
        cls,
        shapes: Sequence[Dims],
        demands: Demands,
        machine: Machine,
        told: Callable[[Dims], Told] | None = None,
    ) -> Encoder:
        """An encoder for shapes like these (at least one), which all have the same dimensions."""
        integers = tuple(name for name, value in shapes[0].items() if _is_size(value))
        others = [name for name in shapes[0] if name not in integers]
        choices = tuple((name, tuple(sorted({shape[name] for shape in shapes}, key=str))) for name in others)
        return cls(integers, choices, demands, machine, told)

    def matrix(self, shapes: Sequence[Dims]) -> Matrix:
        """One row per shape; values that were not seen when the encoder was made have zeros in their columns."""
        return np.array([self._row(shape) for shape in shapes], dtype=np.float64)

    def _row(self, dims: Dims) -> list[float]:
        row: list[float] = []
        for name in self.integers:
            size = max(int(dims[name]), 1)
            row += [math.log2(size), tier(size), size / (1 << (size.bit_length() - 1)) - 1.0]
        demand = self.demands(dims)
        row += [
            math.log2(max(demand.operations, 1.0)),
            math.log2(max(demand.moved_bytes, 1.0)),
            math.log2(max(demand.operations, 1.0) / max(demand.moved_bytes, 1.0)),
            math.log2(max(demand.moved_bytes, 1.0) / self.machine.cache_bytes),
            math.log2(demand.steps),
        ]
        for tiles, fill in zip(demand.tiles, demand.fill, strict=True):
            waves = waves_of(tiles, self.machine)
            row += [math.log2(tiles), math.log2(waves), tiles / (waves * self.machine.units), fill]
        row.append(float(demand.is_aligned))
        for name, values in self.choices:
            row += [float(dims[name] == value) for value in values]
        return row + list(self.told(dims).row) if self.told else row


def tier(size: int) -> int:
    """How often 2 divides a size, at most 7: which loads its rows allow."""
    return min((size & -size).bit_length() - 1, _DEEPEST_TIER) if size else _DEEPEST_TIER


def waves_of(tiles: int, machine: Machine) -> int:
    """How often all of a machine's units must be handed a tile until none is left."""
    return max(1, math.ceil(tiles / machine.units))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
