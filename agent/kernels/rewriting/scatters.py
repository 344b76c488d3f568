"""Segments: values that are scattered to places in ascending order, and counts of values in rows."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    hint,
    is_operation,
    is_written_between,
    operation,
    value_of,
)

#: Of values along a row: a kernel counts in registers (`MOST_BINS` of `gpu/scatters.py`).
MOST_COUNTED = 4096
#: Operations that keep places in order.
_KEEP_ORDER = ("sub", "add", "clamp", "to", "_to_copy", "view", "contiguous", "clone", "detach")
_KINDS = {"amax": "max", "amin": "min", "sum": "sum"}


def scattering(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """The library's operation in place of a node that scatters to ordered places or counts, or None for other nodes."""
    name = operation(node)
    if name not in ("index_add", "scatter_add", "scatter_reduce"):
        return None
    given = arguments_of(node)
    source = given["source" if name == "index_add" else "src"]
    out, index, x = (value_of(one) for one in (given["self"], given["index"], source))
    if not all(isinstance(one, torch.Tensor) and one.dim() > 0 for one in (out, index, x)):
        return None
    is_last = given["dim"] % out.dim() == out.dim() - 1
    if name == "scatter_add" and is_last and (labels := _counted(node, given, out, index)) is not None:
        with graph.inserting_before(node):
            return add_call(graph, torch.ops.kernelwright.count.default, given["self"], labels)
    places = _places(given["index"], x)
    kind = _KINDS.get(given.get("reduce", "sum"))
    if (
        places is None or kind is None or given["dim"] % out.dim() != 0 or x.dtype != out.dtype or given.get("alpha", 1) != 1
        or not given.get("include_self", True) or out.dim() != x.dim() or x.dim() > 2 or x.shape[1:] != out.shape[1:]
        # The compiler computes rows where it scatters them; here they would go through memory once more.
        or (kind == "sum" and x.dim() == 2 and source.op != "placeholder")
    ):  # fmt: skip
        return None
    with graph.inserting_before(node):
        return add_call(graph, torch.ops.kernelwright.scatter.default, given["self"], places, source, kind)


def _counted(node: torch.fx.Node, given: dict[str, Any], out: torch.Tensor, index: torch.Tensor) -> Any:
    """The values along a row that `scatter_add` counts, since it adds ones to whole numbers; else None."""
    ones, labels = given["src"], given["index"]
    if operation(ones) not in ("ones_like", "ones") or is_written_between(ones, node):
        return None
    if (
        hint(out.shape[-1]) > MOST_COUNTED
        or out.is_floating_point()
        or index.shape[:-1] != out.shape[:-1]
        or value_of(ones).shape != index.shape
    ):
        return None
    is_widened = operation(labels) in ("to", "_to_copy") and not is_written_between(labels, node)
    narrow = labels.args[0] if is_widened else None
    return narrow if narrow is not None and value_of(narrow).dtype == torch.int32 else labels


def _places(index: Any, x: torch.Tensor) -> Any:
    """The ascending places of which an index consists, one for each row of x; else None."""
    if value_of(index).dim() == 2:
        column: Any = index.args[0] if operation(index) in ("expand", "expand_as") else None
        if (
            not is_operation(column, "unsqueeze")
            or value_of(index).shape != x.shape
            or value_of(column).shape[1] != 1
        ):
            return None
        index = column.args[0]
    if (
        value_of(index).dim() != 1
        or value_of(index).dtype != torch.int64
        or value_of(index).shape != x.shape[:1]
    ):
        return None
    origin = index
    while operation(origin) in _KEEP_ORDER and not any(
        isinstance(more, torch.fx.Node) for more in origin.args[1:]
    ):
        origin = origin.args[0]
    if operation(origin) == "repeat_interleave":
        return index
    is_looked_up = operation(origin) in ("searchsorted", "bucketize")
    return index if is_looked_up and is_operation(arguments_of(origin)["self"], "arange") else None
