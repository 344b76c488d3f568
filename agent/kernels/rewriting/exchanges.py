"""Sorts of up to four elements on a CPU as exchanges of neighbors, pointwise operations that the compiler fuses with what is around them.

On a GPU the compiler sorts short rows in registers: a packing of pairs took 0.18 ms so and 0.50 ms by exchanges (H200).
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, arguments_of, aten, operation, replace, value_of

#: Elements; every one of them is computed by all exchanges, whose number is quadratic.
MOST_EXCHANGED = 4


def exchanged(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Let exchanges sort what a node sorts, if it is that short; whether they do. Equal elements keep their order, NaN is largest."""
    name = operation(node)
    if name not in ("sort", "topk") or any(user.target is not operator.getitem for user in node.users):
        return False
    given = arguments_of(node)
    x = value_of(given["self"])
    if (
        not isinstance(x, torch.Tensor)
        or x.device.type != "cpu"
        or x.dim() == 0
        or x.dtype == torch.bool
        or x.is_complex()
        or not x.is_contiguous()
    ):
        return False
    dim = given["dim"] % x.dim()
    size = x.shape[dim]
    taken = given["k"] if name == "topk" else size
    if not isinstance(size, int) or not 1 < size <= MOST_EXCHANGED or not isinstance(taken, int) or taken < 1:
        return False
    falls = given["largest"] if name == "topk" else given["descending"]
    with graph.inserting_before(node):
        values = [add_call(graph, aten.select.int, given["self"], dim, place) for place in range(size)]
        places = [
            add_call(graph, aten.full_like.default, one, at, dtype=torch.int64)
            for at, one in enumerate(values)
        ]
        for turn in range(size):
            for at in range(turn % 2, size - 1, 2):
                wrong = _is_wrong(graph, values[at], values[at + 1], falls, x.is_floating_point())
                for each in (values, places):
                    first, second = each[at : at + 2]
                    each[at] = add_call(graph, aten.where.self, wrong, second, first)
                    each[at + 1] = add_call(graph, aten.where.self, wrong, first, second)
        parts = [add_call(graph, aten.stack.default, each[:taken], dim) for each in (values, places)]
    for user in list(node.users):
        replace(graph, user, parts[int(user.args[1])])  # type: ignore[arg-type]
    graph.erase_node(node)
    return True


def _is_wrong(graph: torch.fx.Graph, first: Any, second: Any, falls: bool, has_nan: bool) -> Any:
    """Whether two neighbors must change places."""
    if falls:
        wrong = add_call(graph, aten.gt.Tensor, second, first)
    else:
        wrong = add_call(graph, aten.lt.Tensor, second, first)
    if not has_nan:
        return wrong
    larger, other = (second, first) if falls else (first, second)
    only = add_call(graph, aten.eq.Tensor, other, other)
    only = add_call(graph, aten.bitwise_and.Tensor, only, add_call(graph, aten.ne.Tensor, larger, larger))
    return add_call(graph, aten.bitwise_or.Tensor, wrong, only)
