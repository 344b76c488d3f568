"""Order statistics of rows: top-k, the beginning of a sorted row, the median, the k-th value. The compiler calls torch for them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    is_written_between,
    operation,
    replace,
    value_of,
)

#: Elements of a row that are taken, of a row of which some are, and of one that one program holds.
MOST_TAKEN = 64
MOST_SORTED = 1 << 20
MOST_COLS = 32768


def order_statistic(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Let the library compute a node, if it is such an operation along the last axis; whether it was."""
    name = operation(node)
    if name not in ("topk", "sort", "median", "kthvalue") or any(
        user.target is not operator.getitem for user in node.users
    ):
        return False
    given = arguments_of(node)
    x = value_of(given["self"])
    if (
        not isinstance(x, torch.Tensor)
        or x.dtype not in (torch.float32, torch.float16, torch.bfloat16)
        or not x.is_contiguous()
        or x.dim() == 0
        or not isinstance(x.shape[-1], int)
        or not 0 < x.shape[-1] <= (MOST_SORTED if name in ("topk", "sort") else MOST_COLS)
        or given.get("dim", None) not in (-1, x.dim() - 1)
    ):
        return False
    used: dict[Any, torch.fx.Node] = {user.args[1]: user for user in node.users}
    values = used[0].users if name == "sort" and 0 in used else ()
    sorted_weights = [user for user in values if operation(user) == "softmax"]
    if any(is_written_between(node, weights) for weights in sorted_weights):
        return False
    with graph.inserting_before(node):
        if name in ("median", "kthvalue"):
            if 1 in used or not isinstance(given.get("k", 1), int):  # which of equals is not told
                return False
            rank = (x.shape[-1] - 1) // 2 if name == "median" else given["k"] - 1
            new = add_call(
                graph, torch.ops.kernelwright.ranked.default, given["self"], rank, name == "median"
            )
            if given["keepdim"]:
                new = add_call(graph, aten.unsqueeze.default, new, -1)
            parts = {0: new}
        else:
            largest = given["largest"] if name == "topk" else given["descending"]
            taken = given["k"] if name == "topk" else _first_ones(used.values(), x.dim() - 1)
            taken = min(taken, x.shape[-1]) if isinstance(taken, int) else 0  # a slice may end beyond the row
            if not 0 < taken <= MOST_TAKEN:
                return False
            top = torch.ops.kernelwright.top.default
            new = add_call(graph, top, given["self"], taken, largest, name == "sort")
            parts = {place: add_call(graph, operator.getitem, new, place) for place in used}
    for weights in sorted_weights:
        # Sums do not depend on the order.
        with graph.inserting_before(weights):
            most = add_call(graph, aten.amax.default, given["self"], [-1], True)
            total = add_call(graph, aten.exp.default, add_call(graph, aten.sub.Tensor, given["self"], most))
            total = add_call(graph, aten.sum.dim_IntList, total, [-1], True)
            first = add_call(graph, aten.exp.default, add_call(graph, aten.sub.Tensor, parts[0], most))
            replace(graph, weights, add_call(graph, aten.div.Tensor, first, total))
    for place, user in used.items():
        replace(graph, user, parts[place])
    graph.erase_node(node)
    return True


def _first_ones(nodes: Any, axis: int) -> int | None:
    """How many of the first elements along an axis are used; None for more than is known."""
    most = 0
    for node in nodes:
        for user in node.users:
            name, count = operation(user), None
            if name in ("slice", "select"):
                given = arguments_of(user)
                if given["dim"] % (axis + 1) == axis:
                    if name == "slice" and given["step"] == 1 and not given["start"]:
                        count = given["end"]
                    elif name == "select" and isinstance(given["index"], int):
                        count = given["index"] + 1
                elif name == "slice":
                    count = _first_ones([user], axis)
            elif name == "softmax" and value_of(user).dtype == value_of(node).dtype == torch.float32:
                count = _first_ones([user], axis) if arguments_of(user)["dim"] in (-1, axis) else None
            elif name == "gather" and arguments_of(user)["self"] is node:
                count = _most_chosen(arguments_of(user), axis)
            if not isinstance(count, int) or count < 1:
                return None
            most = max(most, count)
    return most


def _most_chosen(given: dict[str, Any], axis: int) -> Any:
    """How many of the first elements `gather` may choose, if its index is the place of a row's largest element; else None."""
    index = given["index"]
    if operation(index) not in ("argmax", "argmin") or given["dim"] not in (-1, axis):
        return None
    chosen, row = arguments_of(index), value_of(index.args[0])
    return (
        row.shape[-1] if row.dim() == axis + 1 and chosen["dim"] in (-1, axis) and chosen["keepdim"] else None
    )
