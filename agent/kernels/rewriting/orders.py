"""Order statistics of rows: top-k, the beginning of a sorted row, the median, the k-th value. The compiler calls torch for them."""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, arguments_of, aten, operation, replace, value_of

#: Elements that are taken one by one, and of a row that one program holds.
MOST_TAKEN = 16
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
        or not 0 < x.shape[-1] <= MOST_COLS
        or given.get("dim", None) not in (-1, x.dim() - 1)
    ):
        return False
    used: dict[Any, torch.fx.Node] = {user.args[1]: user for user in node.users}
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
            if not isinstance(taken, int) or not 0 < taken <= MOST_TAKEN:
                return False
            top = torch.ops.kernelwright.top.default
            new = add_call(graph, top, given["self"], taken, largest, name == "sort")
            parts = {place: add_call(graph, operator.getitem, new, place) for place in used}
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
            if not isinstance(count, int) or count < 1:
                return None
            most = max(most, count)
    return most
