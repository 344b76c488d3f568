"""Sums and norms of many tensors, such as all gradients of a model: one operation in place of one for each."""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    is_operation,
    is_written_between,
    only_used,
    operation,
    value_of,
)

#: With fewer, the compiler's kernels are launched as quickly.
FEWEST = 16


def sums_of_many(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What stands for a stack of numbers that are each the sum, or each the 2-norm, of a tensor of the call's; None for other nodes."""
    numbers: Any = node.args[0] if operation(node) == "stack" and arguments_of(node)["dim"] in (0, -1) else ()
    found = [_reduced(one) for one in numbers]
    tensors, kinds = [one[0] for one in found if one], {one[1] for one in found if one}
    if len(tensors) < max(FEWEST, len(numbers)) or len(kinds) != 1:
        return None
    alike = all(
        one.op == "placeholder" and value_of(one).dtype == torch.float32 and value_of(one).is_contiguous()
        for one in tensors
    )
    if not alike or is_written_between(tensors[-1], node):
        return None
    with graph.inserting_before(node):
        return add_call(graph, torch.ops.kernelwright.sums.default, tensors, kinds.pop())


def _is_alike(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a cast changes nothing."""
    return (before.device, before.dtype) == (after.device, after.dtype)


def _reduced(node: Any) -> tuple[Any, bool] | None:
    """The tensor of which a node is the sum, or the norm (true); None for other nodes."""
    node = only_used(node)
    while is_operation(node, "to") and _is_alike(value_of(node.args[0]), value_of(node)):
        node = only_used(node.args[0])
    if node is None or value_of(node).dtype != torch.float32:
        return None
    if node.target is operator.getitem:
        norms, place = node.args
        given: dict[str, Any] = arguments_of(norms) if is_operation(norms, "_foreach_norm") else {"ord": None}
        return (given["self"][place], True) if given["ord"] == 2 and given["dtype"] is None else None
    given = arguments_of(node) if operation(node) else {}
    if is_operation(node, "linalg_vector_norm"):
        whole = given["dim"] is None and given["ord"] == 2 and not given["keepdim"]
        return (given["self"], True) if whole and given["dtype"] is None else None
    return (
        (given["self"], False)
        if is_operation(node, "sum") and not given.get("dim") and value_of(node).dim() == 0
        else None
    )
