"""Finds structure that all draws of an input share, see :mod:`evaluator.input_structure`.

Runs in the reference's process.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: At most this many different values, among this many inspected elements. The first ones decide for most tensors:
#: all of them take 50 ms to sort.
_FEW, _LOOKED_AT, _FIRST = 8, 1 << 16, 64
#: Zeros count as fixed if hardly any element that is zero in one draw is nonzero in another.
_SAME_PLACES = 0.98
#: Lines along a dimension are inspected fully only if this many of each other dimension agree.
_FIRST_LINES = 8
_LEAST_SORTED = 16
#: Larger matrices are only tested for symmetry.
_MOST_FACTORED = 2048


def find(draws: list[torch.Tensor], *, seeded: bool) -> list[str]:
    """Names of the structures shared by all draws of one floating tensor; none if there is no structure or values
    are not finite.

    Args:
        draws: two or more, of one shape and dtype.
        seeded: every input is the same in every draw, so equal draws prove nothing.
    """
    first = draws[0]
    if len(draws) < 2 or not first.is_floating_point() or first.numel() < 2:
        return []
    if all(torch.equal(draw, first) for draw in draws[1:]):
        return [] if seeded else ["constant"]
    draws = [draw.detach() for draw in draws]
    if first.element_size() == 1:  # torch cannot compare float8
        draws = [draw.float() for draw in draws]
    if not all(bool(torch.isfinite(draw).all()) for draw in draws):
        return []
    found = _few_values(draws) + _zeros(draws) + _square(draws)
    for dimension in range(first.dim()):
        found += _lines(draws, dimension, torch.finfo(first.dtype).eps)
    return found


def _few_values(draws: list[torch.Tensor]) -> list[str]:
    parts = [draw.reshape(-1)[:_LOOKED_AT] for draw in draws]
    most = min(_FEW, parts[0].numel() // 4)
    few = all(torch.cat(some).unique().numel() <= most for some in ([parts[0][:_FIRST]], parts))
    return ["few_values"] if few else []


def _zeros(draws: list[torch.Tensor]) -> list[str]:
    every, some = draws[0] == 0, draws[0] == 0
    for draw in draws[1:]:
        every &= draw == 0
        some |= draw == 0
    shared = int(every.sum())
    if shared == 0 or shared == every.numel() or shared < _SAME_PLACES * int(some.sum()):
        return []
    if every.dim() >= 2:
        above, below = not bool((~every).triu(1).any()), not bool((~every).tril(-1).any())
        if above or below:
            return ["diagonal" if above and below else "lower_triangular" if above else "upper_triangular"]
    return ["zero_pattern"]


def _square(draws: list[torch.Tensor]) -> list[str]:
    first = draws[0]
    if first.dim() < 2 or first.shape[-1] != first.shape[-2] or first.shape[-1] < 2:
        return []
    if _mirrored(draws, -1.0):
        return ["antisymmetric"]
    if not _mirrored(draws, 1.0):
        return []
    if first.shape[-1] <= _MOST_FACTORED and all(
        bool((torch.linalg.cholesky_ex(draw.double()).info == 0).all()) for draw in draws
    ):
        return ["symmetric", "positive_definite"]
    return ["symmetric"]


def _mirrored(draws: list[torch.Tensor], sign: float) -> bool:
    """Whether matrices equal their transposes times ``sign`` up to rounding.

    Tests a few rows first, since most do not.
    """
    for rows in (min(_FIRST_LINES, draws[0].shape[-1]), draws[0].shape[-1]):
        for draw in draws:
            some, other = (one.narrow(-2, 0, rows).double() for one in (draw, draw.mT))
            if not torch.allclose(some, sign * other, rtol=1e-6, atol=0.0):
                return False
    return True


def _lines(draws: list[torch.Tensor], dimension: int, epsilon: float) -> Iterator[str]:
    """What lines along one dimension share."""
    length = draws[0].shape[dimension]
    if length < 2:
        return
    few = [_part(draw, dimension) for draw in draws]
    # Sums of random numbers differ by their square root; sums of normalized numbers differ by rounding.
    tolerance = 8 * epsilon / length**0.5 + 2e-6
    if _repeated(few, dimension) and _repeated(draws, dimension):
        yield f"repeated:{dimension}"
        return
    for kind, holds in (("sum", _same_sums), ("norm", _same_norms), ("sorted", _sorted)):
        if holds(few, dimension, tolerance) and holds(draws, dimension, tolerance):
            yield f"{kind}:{dimension}"


def _part(draw: torch.Tensor, dimension: int) -> torch.Tensor:
    for other in range(draw.dim()):
        if other != dimension:
            draw = draw.narrow(other, 0, min(draw.shape[other], _FIRST_LINES))
    return draw


def _repeated(draws: list[torch.Tensor], dimension: int) -> bool:
    """Whether each line has one value, as in a mask that was expanded over heads or rows."""
    return all(bool((draw == draw.narrow(dimension, 0, 1)).all()) for draw in draws)


def _same_sums(draws: list[torch.Tensor], dimension: int, tolerance: float) -> bool:
    return _alike(
        [draw.sum(dimension, dtype=torch.float64) for draw in draws],
        [draw.abs().sum(dimension, dtype=torch.float64) for draw in draws],
        tolerance,
    )


def _same_norms(draws: list[torch.Tensor], dimension: int, tolerance: float) -> bool:
    norms = [torch.linalg.vector_norm(draw, dim=dimension, dtype=torch.float64) for draw in draws]
    return _alike(norms, norms, tolerance)


def _alike(values: list[torch.Tensor], scales: list[torch.Tensor], tolerance: float) -> bool:
    """Whether all numbers of all draws are equal, within a share of the largest scale."""
    every, scale = (
        torch.cat([v.reshape(-1) for v in values]),
        float(torch.cat([s.reshape(-1) for s in scales]).max()),
    )
    return scale > 0.0 and float(every.max() - every.min()) <= tolerance * scale


def _sorted(draws: list[torch.Tensor], dimension: int, tolerance: float) -> bool:
    """Whether lines rise everywhere, or fall everywhere."""
    if draws[0].numel() < _LEAST_SORTED or draws[0].shape[dimension] < 3:
        return False
    steps = [draw.diff(dim=dimension) for draw in draws]
    return all(bool((step >= 0).all()) for step in steps) or all(bool((step <= 0).all()) for step in steps)
