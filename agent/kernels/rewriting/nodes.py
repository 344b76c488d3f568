"""Nodes of a captured graph: what they are, their arguments and values, and how new ones are made."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def operation(node: Any) -> str:
    """Of an operation of torch's, without its overload; else empty."""
    schema = getattr(node.target, "_schema", None) if isinstance(node, torch.fx.Node) else None
    return schema.name.removeprefix("aten::") if schema is not None else ""


def writes(node: Any) -> bool:
    """Whether an operation changes a tensor in place; nothing moves past one.

    Norms that learn statistics do so too, though their schemas say nothing of it.
    """
    schema = getattr(node.target, "_schema", None)
    if operation(node) in ("batch_norm", "instance_norm"):
        given = arguments_of(node)
        return bool(given.get("training", given.get("use_input_stats"))) and given["running_mean"] is not None
    return schema is not None and bool(schema.is_mutable)


def is_written_between(first: Any, last: Any) -> bool:
    """Whether an operation between two others changes a tensor in place, or begins or ends an autocast."""
    while first is not last:
        first = first.next
        if writes(first) or getattr(first.target, "__name__", "") in ("_enter_autocast", "_exit_autocast"):
            return True
    return False


def arguments_of(node: Any) -> dict[str, Any]:
    """By name, defaults among them."""
    given: dict[str, Any] = {one.name: one.default_value for one in node.target._schema.arguments}
    return given | dict(zip(given, node.args, strict=False)) | node.kwargs


def is_operation(node: Any, name: str) -> bool:
    """Whether a node is this operation of torch's."""
    return operation(node) == name


def only_used(node: Any) -> Any:
    """A node that has no other user, else None."""
    return node if isinstance(node, torch.fx.Node) and len(node.users) == 1 else None


def value_of(node: Any) -> Any:
    """Its fake tensor, or None."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def spread(value: Any, axes: int) -> list[Any]:
    """One value for all axes, or one for each, as a list."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * axes if len(values) == 1 else values


def hint(size: Any) -> int:
    """A size, of a symbol the module's own."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def same_sizes(*tensors: Any) -> bool:
    """Whether tensors have the same sizes, symbols by their names: a comparison of symbols would become a condition of the code."""
    return len({tuple(str(size) for size in one.shape) for one in tensors}) == 1


def scaled(scale: float, node: Any) -> float | None:
    """A scale times the positive number by which an operation multiplies its first argument; None for other operations.

    None also where a product of all numbers leaves the range in which each of them rounds as one after the other does.
    """
    if operation(node) not in ("mul", "div") or len(node.args) != 2 or node.kwargs:
        return None
    number = node.args[1]
    if not isinstance(number, int | float) or not 1e-30 < number < 1e30:
        return None
    scale = scale * number if operation(node) == "mul" else scale / number
    return scale if 1e-30 < scale < 1e30 else None


def laid_out(graph: torch.fx.Graph, node: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
    """The result of an attention in torch's layout: where that is the queries', with heads side by side, users may view it so."""
    if like.is_contiguous() or not like.transpose(1, 2).is_contiguous():
        return node
    turned = add_call(graph, aten.contiguous.default, add_call(graph, aten.transpose.int, node, 1, 2))
    return add_call(graph, aten.transpose.int, turned, 1, 2)


def replace(graph: torch.fx.Graph, node: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let a new node take another's place."""
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def add_call(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A new node with the value that it has for fake tensors."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg((args, kwargs), lambda one: one.meta["val"])
    given = tree_leaves([one.meta["val"] for one in node.all_input_nodes])
    mode: Any = next(one for one in given if isinstance(one, torch.Tensor))
    with mode.fake_mode:
        node.meta["val"] = target(*values[0], **values[1])
    return node
