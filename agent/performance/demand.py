"""What one call at a shape asks of a machine: operations, bytes, tiles and the steps inside a tile.

A task says of its shapes only what its dimensions are called. What is known of a product of matrices is known here; of
anything else the dimensions are taken as a grid of rows whose last dimension is contiguous, which is right for row kernels
and harmless elsewhere, since the models fit what a unit of it costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Dims = Mapping[str, Any]

#: Loads of 16 bytes are the widest; a row that is no multiple of it has none of them.
_WIDEST_BYTES = 16
#: Rows or columns of a product that one tile covers, as (rows, columns); the first is what libraries use most.
_TILES = ((128, 128), (128, 256), (256, 128), (64, 64), (64, 256))
_STEP = 64


@dataclass(frozen=True)
class Machine:
    """What the models need of a device.

    Attributes:
        units: multiprocessors of a GPU, threads of a CPU.
        cache_bytes: of the cache that all of them share.
    """

    units: int
    cache_bytes: int


@dataclass(frozen=True)
class Demand:
    """One call at one shape.

    Attributes:
        operations: multiplications and additions.
        moved_bytes: read and written at least.
        tiles: how many tiles of output there are, for each of a few tile sizes.
        steps: of the loop inside a tile.
        fill: of the elements that the tiles cover, the share that exist (0 to 1), for each tile size.
        contiguous: sizes of the dimensions along which memory runs, in elements.
        item_bytes: of one element.
    """

    operations: float
    moved_bytes: float
    tiles: tuple[int, ...]
    steps: int
    fill: tuple[float, ...]
    contiguous: tuple[int, ...]
    item_bytes: int

    @property
    def is_aligned(self) -> bool:
        """Whether every row begins where the widest load may begin."""
        return all(size * self.item_bytes % _WIDEST_BYTES == 0 for size in self.contiguous)


Demands = Callable[[Dims], Demand]


def product(dims: Dims, item_bytes: int = 2) -> Demand:
    """C = A B with row-major A of ``M`` rows and ``K`` columns and B of ``K`` rows and ``N`` columns."""
    m, n, k = int(dims["M"]), int(dims["N"]), int(dims["K"])
    tiles = tuple(math.ceil(m / rows) * math.ceil(n / columns) for rows, columns in _TILES)
    return Demand(
        operations=2.0 * m * n * k,
        moved_bytes=float(item_bytes * (m * k + k * n + m * n)),
        tiles=tiles,
        steps=math.ceil(k / _STEP),
        fill=tuple(
            m * n / (count * rows * columns) for count, (rows, columns) in zip(tiles, _TILES, strict=True)
        ),
        contiguous=(k, n),
        item_bytes=item_bytes,
    )


def grid(dims: Dims, item_bytes: int = 4) -> Demand:
    """Anything else: a grid of all integer dimensions but the last, whose elements lie one after the other."""
    sizes = [value for value in dims.values() if isinstance(value, int) and not isinstance(value, bool)]
    *outer, inner = sizes or [1]
    rows = math.prod(outer)
    steps = max(1, math.ceil(inner / 1024))
    return Demand(
        operations=float(rows * inner),
        moved_bytes=2.0 * item_bytes * rows * inner,
        tiles=(max(rows, 1), max(1, math.ceil(rows * inner / 1024))),
        steps=steps,
        fill=(inner / (steps * 1024), 1.0),
        contiguous=(inner,),
        item_bytes=item_bytes,
    )
