"""Operations in place as operations that give a new tensor: other rules move nothing past a write."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, aten, operation, same_sizes, value_of, writes

#: Operations whose result is always memory of its own.
_FRESH = frozenset(
    f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3)
) | {
    "linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "batch_norm", "layer_norm", "group_norm", "instance_norm",
    "add", "sub", "mul", "div", "relu", "relu6", "leaky_relu", "gelu", "silu", "mish", "elu", "sigmoid", "tanh", "exp", "abs", "neg",
    "clamp", "clamp_min", "clamp_max", "hardtanh", "hardswish", "hardsigmoid", "softplus", "softmax", "cat", "clone",
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
}  # fmt: skip


def without_writes(graph: torch.fx.Graph) -> None:
    """Let pointwise operations on what another operation has just made give new tensors, which all later operations take."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not writes(node) or not operation(node).endswith("_"):
            continue
        target: Any = node.target
        made: Any = node.args[0]
        name = operation(node).removesuffix("_")
        plain = getattr(getattr(aten, name, None), target._overloadname or "default", None)
        if name not in _FRESH or plain is None or operation(made) not in _FRESH or writes(made):
            continue
        place = {one: at for at, one in enumerate(graph.nodes)}
        earlier = [user for user in made.users if place[user] < place[node]]
        if any(_is_view(user) for user in earlier):
            continue
        with graph.inserting_before(node):
            new = add_call(graph, plain, *node.args, **node.kwargs)
        was, now = value_of(node), value_of(new)
        if was.dtype != now.dtype or not same_sizes(was, now) or was.stride() != now.stride():
            graph.erase_node(new)
            continue
        made.replace_all_uses_with(
            new, delete_user_cb=lambda user, last=new, early=earlier: user is not last and user not in early
        )
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether a node's result may share memory with an argument: also where torch does not say so."""
    return operation(node) not in _FRESH
