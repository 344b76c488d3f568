"""What the name of a library's kernel says of how it divides a product: its tile, its step, whether it splits the sum.

Which kernel a library runs at a shape is known from one call that nobody times, or from its heuristics without any call; a
library changes it from one size to the next, by rules that measured times show only where many were taken. GPPerf's models
are told as much: its kernels are CUTLASS's, and their tiles are among its features.

cuBLAS computes the transposed product, so the first number of a tile is of columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from agent.performance.demand import Dims
from agent.performance.features import Told

#: Kernels of one kind cost about the same per step: by the instruction and the way operands are loaded.
_FAMILIES = (
    ("nvjet",), ("cutlass_80_tensorop",), ("cutlass_75_tensorop",), ("cutlass_80_wmma",), ("gemmSN", "gemv", "dot_kernel"),
)  # fmt: skip
#: What a kernel is taken for whose name has no sizes.
_TILE, _STEP = (64, 64), 64
#: More tiles than so many for each unit change nothing that power depends on.
_SATURATED_WAVES = 4.0


def short(name: str) -> str:
    """The part of a kernel's name that tells it from others: without its type and its template's types."""
    inner = re.search(r"cutlass::Kernel\w*<([^>(]+)>", name)
    return inner[1] if inner else re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()


def told(units: int, kernels: Sequence[str], dims: Dims) -> Told:
    """What the kernels of one product say of it.

    Args:
        units: multiprocessors of the GPU.
        kernels: their names (see :func:`short`), in order.
        dims: ``M``, ``N`` and ``K``.
    """
    computing = [name for name in kernels if not name.startswith(("Memset", "Memcpy"))]
    name = computing[0] if computing else ""
    pairs = [(int(one), int(other)) for one, other in re.findall(r"_(\d+)x(\d+)", name)] or [_TILE]
    tile, steps = pairs[0], (*pairs[1:], (0, 0))[0]
    cluster = (*pairs[2:], (0, 0))[0]
    alignment = re.search(r"align(\d+)", name)
    rows, columns, inner = int(dims["M"]), int(dims["N"]), int(dims["K"])
    tiles = math.ceil(columns / tile[0]) * math.ceil(rows / tile[1])
    covered = tiles * tile[0] * tile[1]
    waves = max(1, math.ceil(tiles / units))
    family = [float(any(part in name for part in parts)) for parts in _FAMILIES]
    splits = float("splitK" in name or len(computing) > 1)
    row = (
        *family,
        splits,
        float("bf16_s" in name),
        float(len(kernels)),
        math.log2(tile[0]),
        math.log2(tile[1]),
        float(steps[0]),
        float(steps[1]),
        float(cluster[0]),
        float(cluster[1]),
        float(alignment[1]) if alignment else 0.0,
        float("coop" in name),
        float("_v_" in name),
        math.log2(tiles),
        math.log2(waves),
        tiles / (waves * units),
        rows * columns / covered,
        math.log2(waves * math.ceil(inner / _STEP)),
        math.log2(covered * inner),
    )
    few = (
        *family[:4],
        splits,
        math.log2(tile[0] * tile[1]),
        math.log2(min(tiles / units, _SATURATED_WAVES)),
        math.log2(covered / (rows * columns)),
    )
    return Told(row, few)
