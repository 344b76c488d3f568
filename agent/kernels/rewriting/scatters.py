"""Segments: values that are scattered to places in ascending order, and counts of values in rows."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, arguments_of, operation, value_of

#: Operations that keep places in order.
_KEEP_ORDER = ("sub", "add", "clamp", "to", "_to_copy", "view", "contiguous", "clone", "detach")
_KINDS = {"amax": "max", "amin": "min", "sum": "sum"}


def scattering(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """The library's operation in place of a node that scatters to ordered places or counts, or None for other nodes."""
    name = operation(node)
    if name not in ("index_add", "scatter_add", "scatter_reduce"):
        return None
    given = arguments_of(node)
    out, index, x = (
        value_of(given[key]) for key in ("self", "index", "source" if name == "index_add" else "src")
    )
    if not all(isinstance(one, torch.Tensor) and one.dim() > 0 for one in (out, index, x)):
        return None
    source = given["source" if name == "index_add" else "src"]
    axis = given["dim"] % out.dim()
    with graph.inserting_before(node):
        is_count = (
            name == "scatter_add"
            and not out.is_floating_point()
            and operation(source) in ("ones_like", "ones")
        )
        if (
            is_count
            and axis == out.dim() - 1
            and index.shape[:-1] == out.shape[:-1]
            and x.shape == index.shape
        ):
            wide = given["index"]
            narrow = wide.args[0] if operation(wide) in ("to", "_to_copy") else None
            is_same = narrow is not None and value_of(narrow).dtype == torch.int32
            return add_call(
                graph, torch.ops.kernelwright.count.default, given["self"], narrow if is_same else wide
            )
        places = _places(given["index"], name == "index_add")
        kind = "sum" if name != "scatter_reduce" else _KINDS.get(given["reduce"])
        if (
            places is None or kind is None or axis != 0 or x.dtype != out.dtype or given.get("alpha", 1) != 1
            or not given.get("include_self", True) or out.dim() != x.dim() or x.dim() > 2 or x.shape[1:] != out.shape[1:]
            # The compiler computes rows where it scatters them; here they would go through memory once more.
            or (kind == "sum" and x.dim() == 2 and source.op != "placeholder")
        ):  # fmt: skip
            return None
        return add_call(graph, torch.ops.kernelwright.scatter.default, given["self"], places, source, kind)


def _places(index: Any, is_line: bool) -> Any:
    """The ascending places, one for each row, of which an index consists; else None."""
    if not is_line and value_of(index).dim() == 2:
        if operation(index) not in ("expand", "expand_as"):
            return None
        index = index.args[0]
        if operation(index) == "unsqueeze" and index.args[1] in (1, -1):
            index = index.args[0]
    if value_of(index) is None or value_of(index).dim() != 1 or value_of(index).dtype != torch.int64:
        return None
    origin = index
    while operation(origin) in _KEEP_ORDER and all(
        isinstance(more, int | float) or not isinstance(more, torch.fx.Node) for more in origin.args[1:]
    ):
        origin = origin.args[0]
    name = operation(origin)
    if name == "repeat_interleave":
        return index
    looked_up = {"searchsorted": "self", "bucketize": "input"}.get(name)
    if looked_up is None or operation(arguments_of(origin)[looked_up]) not in ("arange",):
        return None
    return index
