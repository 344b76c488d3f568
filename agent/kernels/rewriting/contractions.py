"""Einsums of many small matrices: torch first copies operands whose axes lie in another order, and multiplies by a factor before."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    hint,
    is_operation,
    is_written_between,
    operation,
    value_of,
)

#: Rows and columns of one product; with more, operands would be read several times.
LARGEST_MATRIX = 128
#: Terms up to which a weighted sum is written as one, which the compiler fuses with its neighbors.
MOST_WEIGHTED = 16
#: Elements of all operands together; with fewer, an einsum is a matter of launches.
LEAST_OPERANDS = 1 << 22
#: Axes that both operands and the result have, see `agent.kernels.gpu.contractions`.
MOST_BATCH_AXES = 4


def contraction(graph: torch.fx.Graph, node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """What takes the place of an einsum, or of what selects a part of its result: the node that goes and the new one; or None."""
    found = _einsum_of(node)
    if found is None or sum(hint(value_of(one).numel()) for one in found[0]) < LEAST_OPERANDS:
        return None
    operands, axes, out = found
    last, picks = node, list[tuple[str, int]]()
    while (after := _selecting(last)) is not None:
        given = arguments_of(after)
        letter = out[given["dim"] % len(out)]
        picks.append((letter, given["index"]))
        out, last = out.replace(letter, ""), after
    left = ["".join(at for at in letters if at not in dict(picks)) for letters in axes]
    summed = {at for letters in left for at in letters} - set(out)
    if len(summed) != 1:
        return None
    [of_sum], sizes = summed, _sizes(operands, axes)
    roles = _roles(left, out, of_sum, sizes)
    is_weighted = _is_weighted(left) and hint(sizes[of_sum]) <= MOST_WEIGHTED
    if not is_weighted and (roles is None or not _pays(operands, axes, left, out, roles, sizes)):
        return None
    with graph.inserting_before(last):
        for letter, index in picks:
            for place, letters in enumerate(axes):
                if letter in letters:
                    operands[place] = add_call(
                        graph, aten.select.int, operands[place], letters.index(letter), index
                    )
                    axes[place] = letters.replace(letter, "")
        if is_weighted:
            return last, _weighted(graph, value_of(last), operands, axes, out)
        return last, _contracted(graph, value_of(last), operands, axes, out, roles)


def _einsum_of(node: Any) -> tuple[list[Any], list[str], str] | None:
    """An einsum's operands, the letters of their axes and the result's: float32, each letter once a tensor and of one size."""
    if operation(node) != "einsum":
        return None
    operands, (given, _, out) = list(node.args[1]), str(node.args[0]).replace(" ", "").partition("->")
    axes, values = given.split(","), [value_of(one) for one in (*operands, node)]
    if len(operands) not in (2, 3) or any(value.dtype != torch.float32 for value in values):
        return None
    for letters, value in zip([*axes, out], values, strict=True):
        if len({*letters}) != len(letters) or not letters.isalpha() or len(letters) != value.dim():
            return None
    sizes = {at: str(size) for at, size in _sizes(operands, axes).items()}
    is_broadcast = any(
        str(size) != sizes[at]
        for one, letters in zip(operands, axes, strict=True)
        for at, size in zip(letters, value_of(one).shape, strict=True)
    )
    return None if is_broadcast else (operands, axes, out)


def _sizes(operands: list[Any], axes: list[str]) -> dict[str, Any]:
    return {
        at: size
        for one, letters in zip(operands, axes, strict=True)
        for at, size in zip(letters, value_of(one).shape, strict=True)
    }


def _selecting(node: torch.fx.Node) -> Any:
    """The only user of a node if it selects from it at a number, else None."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    fits = is_operation(user, "select") and isinstance(arguments_of(user)["index"], int)
    return user if fits and not is_written_between(node, user) else None


def _is_weighted(axes: list[str]) -> bool:
    """Whether one of two operands has all axes of the other: there is no product of matrices."""
    return len(axes) == 2 and (set(axes[0]) <= set(axes[1]) or set(axes[1]) <= set(axes[0]))


def _roles(axes: list[str], out: str, summed: str, sizes: dict[str, Any]) -> list[int] | None:
    """Which operands are multiplied, and which one the first is multiplied by before, if there is a third; few rows first.

    A factor without the summed axis could be multiplied by the sum, too, which may be finite where its terms are not.
    """
    found = []
    for roles in permutations(range(len(axes))):
        a, b, *factor = (set(axes[place]) for place in roles)
        is_product = summed in a & b and len(a - b) == len(b - a) == 1 and len(a & b) <= MOST_BATCH_AXES + 1
        if (
            is_product
            and all(summed in one and one <= a for one in factor)
            and set(out) == (a | b) - {summed}
        ):
            found.append((hint(sizes[min(a - b)]), list(roles)))
    return min(found)[1] if found else None


def _pays(
    operands: list[Any], axes: list[str], left: list[str], out: str, roles: list[int], sizes: dict[str, Any]
) -> bool:
    """Whether matrices are small, and torch would copy one of them or multiply it by a factor first.

    Args:
        left: of the axes those at which nothing is selected.
    """
    a, b = left[roles[0]], left[roles[1]]
    apart = set(a) ^ set(b)
    if max(hint(sizes[at]) for at in apart) > LARGEST_MATRIX:
        return False
    shared = [at for at in out if at not in apart]
    return len(roles) > 2 or any(
        _is_copied(operands[place], axes[place], left[place], shared) for place in roles
    )


def _is_copied(operand: Any, axes: str, left: str, shared: list[str]) -> bool:
    """Whether the axes that both operands share do not lie next to one another, or no row or column does."""
    value = value_of(operand)
    sizes, steps = (dict(zip(axes, map(hint, each), strict=True)) for each in (value.shape, value.stride()))
    along = [at for at in shared if sizes[at] > 1]
    apart = any(steps[one] != steps[other] * sizes[other] for one, other in pairwise(along))
    return apart or all(steps[at] != 1 for at in left if at not in shared)


def _weighted(
    graph: torch.fx.Graph, value: torch.Tensor, operands: list[Any], axes: list[str], out: str
) -> torch.fx.Node:
    """The products of two operands, one of which is spread over the other's axes, and their sum, which lies as the einsum's."""
    few, many = sorted((0, 1), key=lambda place: len(axes[place]))
    weights, order = operands[few], [at for at in axes[many] if at in axes[few]]
    weights = add_call(graph, aten.permute.default, weights, [axes[few].index(at) for at in order])
    for place, at in enumerate(axes[many]):
        if at not in order:
            weights = add_call(graph, aten.unsqueeze.default, weights, place)
    terms = add_call(graph, aten.mul.Tensor, operands[many], weights)
    left, inner = [at for at in axes[many] if at in out], _in_memory(value, out)
    total = add_call(
        graph, aten.sum.dim_IntList, terms, [place for place, at in enumerate(axes[many]) if at not in out]
    )
    total = add_call(graph, aten.permute.default, total, [left.index(at) for at in inner])
    total = add_call(graph, aten.clone.default, total, memory_format=torch.contiguous_format)
    return add_call(graph, aten.permute.default, total, [inner.index(at) for at in out])


def _in_memory(value: torch.Tensor, out: str) -> str:
    """The axes of a result in the order in which they lie in memory; views of it that torch allows need that order."""
    steps = dict(zip(out, map(hint, value.stride()), strict=True))
    return "".join(sorted(out, key=lambda at: -steps[at]))


def _contracted(
    graph: torch.fx.Graph, value: torch.Tensor, operands: list[Any], axes: list[str], out: str, roles: Any
) -> torch.fx.Node:
    """The library's operation; in memory its result lies as the einsum's does."""
    inner = _in_memory(value, out)
    equation = ",".join(axes[place] for place in roles) + "->" + inner
    a, b, *factor = (operands[place] for place in roles)
    new = add_call(graph, torch.ops.kernelwright.contraction.default, equation, a, b, *factor or [None])
    return (
        new if inner == out else add_call(graph, aten.permute.default, new, [inner.index(at) for at in out])
    )
