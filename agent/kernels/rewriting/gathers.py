"""Batched products of one row or column with matrices that an index picks: the matrices are read where they lie."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    hint,
    is_operation,
    is_written_between,
    only_used,
    operation,
    value_of,
)

#: Elements of the picked matrices together; of fewer the compiler's copy takes no longer than launches.
LEAST_PICKED = 1 << 20


def gathered_product(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """The library's operation in place of a product with picked matrices, or None for other nodes."""
    if operation(node) not in ("bmm", "matmul"):
        return None
    one: Any
    two: Any
    one, two = node.args[:2]
    left, right = value_of(one), value_of(two)
    if not all(isinstance(each, torch.Tensor) and each.dim() == 3 for each in (left, right)):
        return None
    is_column = _is_one(right.shape[2]) and _picked(one) is not None
    found = _picked(one) if is_column else _picked(two) if _is_one(left.shape[1]) else None
    if found is None:
        return None
    weights, index = found
    vector, matrices = (two, one) if is_column else (one, two)
    picked = value_of(matrices)
    if (
        value_of(vector).dtype != torch.float32 or str(picked.shape[0]) != str(value_of(vector).shape[0])
        or hint(picked.numel()) < LEAST_PICKED or is_written_between(matrices, node)
    ):  # fmt: skip
        return None
    with graph.inserting_before(node):
        if not is_column:
            weights = add_call(graph, aten.transpose.int, weights, 1, 2)
        flat = add_call(graph, aten.squeeze.dim, vector, 2 if is_column else 1)
        out = add_call(graph, torch.ops.kernelwright.gathered.default, weights, index, flat)
        return add_call(graph, aten.unsqueeze.default, out, 2 if is_column else 1)


def _is_one(size: Any) -> bool:
    """Also of a symbol, without a condition."""
    return isinstance(size, int) and size == 1


def _picked(node: Any) -> tuple[Any, Any] | None:
    """The matrices (count, m, k) and the index (rows,) of which a node has one for each row."""
    if only_used(node) is None:
        return None
    if is_operation(node, "index"):
        weights, indices = node.args
        index = indices[0] if len(indices) == 1 else None
    elif is_operation(node, "index_select") and arguments_of(node)["dim"] == 0:
        weights, index = node.args[0], arguments_of(node)["index"]
    else:
        return None
    of, at = value_of(weights), value_of(index)
    if not isinstance(at, torch.Tensor) or at.dim() != 1 or at.dtype not in (torch.int32, torch.int64):
        return None
    if at.device != of.device:
        return None
    return (weights, index) if of.dim() == 3 and of.dtype == torch.float32 else None
