"""Sums of a table's rows by bags that offsets divide: embedding bags, and products with a sparse matrix of compressed rows."""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    is_operation,
    is_written_between,
    operation,
    same_sizes,
    value_of,
)


def bag_sums(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """The library's operation in place of a node that sums a table's rows by bags, or None for other nodes."""
    name = operation(node)
    found = _of_index_add(node) if name == "index_add" else _of_embedding_bag(node)
    if found is None:
        return None
    start, *arguments = found
    of = [value_of(one) for one in arguments[:4] if one is not None]
    floats = [of[0], *of[3:]]
    if (
        any(one.dtype != torch.float32 for one in floats) or any(one.dtype not in (torch.int32, torch.int64) for one in of[1:3])
        or of[0].dim() != 2 or of[1].dim() != 1 or of[2].dim() != 1 or any(one.device != of[0].device for one in of)
    ):  # fmt: skip
        return None
    with graph.inserting_before(node):
        sums = add_call(graph, torch.ops.kernelwright.bags.default, *arguments)
        return sums if start is None else add_call(graph, aten.add.Tensor, start, sums)


def _of_embedding_bag(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """What is added (nothing), and arguments of `bags`, for the first result of torch's, if no other is used."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    bag: Any = node.args[0]
    if (
        operation(bag) not in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
        or len(bag.users) != 1
    ):
        return None
    given = arguments_of(bag)
    if given["mode"] != 0 or given.get("padding_idx", -1) not in (None, -1) or is_written_between(bag, node):
        return None
    last, weight = bool(given["include_last_offset"]), given["per_sample_weights"]
    return None, given["weight"], given["indices"], given["offsets"], weight, last, False


def _of_index_add(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """What is added, and arguments of `bags`, for rows of a table that go to the rows in which a search finds their places."""
    given = arguments_of(node)
    start, index, source = value_of(given["self"]), given["index"], given["source"]
    if (
        start.dim() != 2
        or given["dim"] % 2 != 0
        or given["alpha"] != 1
        or not is_operation(index, "sub")
        or index.args[1] != 1
    ):
        return None
    search: Any = index.args[0]
    if index.kwargs or not is_operation(search, "searchsorted"):
        return None
    sought = arguments_of(search)
    offsets, places = sought["sorted_sequence"], sought["self"]
    if (
        not (sought["right"] or sought["side"] == "right")
        or sought["sorter"] is not None
        or not is_operation(places, "arange")
    ):
        return None
    if not isinstance(offsets, torch.fx.Node) or str(value_of(offsets).shape[0] - 1) != str(start.shape[0]):
        return None
    picked, table, ids, weight = _weighted_rows(source)
    # Places count from 0, one for each entry.
    counted = arguments_of(places)
    if picked is None or counted.get("start", 0) != 0 or counted.get("step", 1) != 1:
        return None
    if str(value_of(places).shape[0]) != str(value_of(ids).shape[0]) or str(value_of(table).shape[1:]) != str(
        start.shape[1:]
    ):
        return None
    if is_written_between(search, node) or is_written_between(picked, node):
        return None
    return given["self"], table, ids, offsets, weight, True, True


def _weighted_rows(source: Any) -> tuple[Any, Any, Any, Any]:
    """The node that picks the rows of which another consists, their table, ids and weights (or None); all None if there is none."""
    weight = None
    if is_operation(source, "mul"):
        column, source = source.args if is_operation(source.args[0], "unsqueeze") else reversed(source.args)
        if (
            not is_operation(column, "unsqueeze")
            or column.args[1] not in (1, -1)
            or value_of(column).dim() != 2
        ):
            return None, None, None, None
        weight = column.args[0]
    if is_operation(source, "index") and len(source.args[1]) == 1:
        table, ids = source.args[0], source.args[1][0]
    elif is_operation(source, "index_select") and source.args[1] == 0:
        table, ids = source.args[0], source.args[2]
    else:
        return None, None, None, None
    same = (
        isinstance(ids, torch.fx.Node)
        and value_of(ids).dim() == 1
        and (weight is None or same_sizes(value_of(weight), value_of(ids)))
    )
    return (source, table, ids, weight) if same else (None, None, None, None)
