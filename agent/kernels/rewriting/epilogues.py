"""Pointwise operations that follow a convolution are computed by it, where the compiler would read its output again."""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.expressions import pointwise
from agent.kernels.rewriting.nodes import operation, value_of, writes

#: Pointwise operations that join a convolution.
MOST_AFTER = 20
#: What they cost, in exponentials, and what may be spent in a tile, whose few warps compute while nothing is multiplied: beyond it
#: another kernel reads and writes the output sooner. A GELU is 43 instructions an element (sm_90).
_COSTS = {"exp": 1, "sigmoid": 1, "silu": 1, "mish": 2, "gelu": 3, "tanh": 3}
_MOST_COST = 1


def pointwise_after(node: torch.fx.Node) -> tuple[torch.fx.Node, str, list[Any]]:
    """Pointwise operations on a convolution's output of which nothing but the last result is used elsewhere.

    Returns:
        The last; statements, of which the last is an expression, on the output's element `x` and two operands `a` and `b`; and
        those operands.
    """
    names, operands, statements, cost = {node: "x"}, dict[torch.fx.Node, str](), list[str](), 0
    found: tuple[torch.fx.Node, str, list[Any]] = (node, "", [None, None])
    out = node.meta["val"]

    def name_of(given: Any) -> str | None:
        """Of an argument; None where it cannot be one."""
        if isinstance(given, torch.fx.Node):
            if given in names:
                return names[given]
            value = value_of(given)
            if (
                not isinstance(value, torch.Tensor)
                or value.dtype != torch.float32
                or not value.is_contiguous()
            ):
                return None
            axes = value.dim() == out.dim() - 1 or (value.dim() == out.dim() and value.shape[0] == 1)
            per_channel = axes and value.shape[1 - out.dim()] == value.numel() == out.shape[1]
            if not per_channel and value.shape != out.shape:
                return None
            # One of the output's size, or two of a value a channel: the kernel has registers for no more.
            held = {given, *operands}
            most = 2 if all(value_of(one).numel() == out.shape[1] for one in held) else 1
            if len(held) > most:
                return None
            return operands.setdefault(given, "ab"[len(operands)])
        is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
        return repr(float(given)) if is_number else None

    later = node.next
    while later.op != "output" and len(statements) < MOST_AFTER and not writes(later):
        if any(one in names for one in later.all_input_nodes):
            cost += _COSTS.get(operation(later), 0)
            text = pointwise(later, name_of) if cost <= _MOST_COST else None
            if text is None or later.meta["val"].shape != out.shape:
                break
            inner = list(names)
            names[later] = f"t{len(statements)}"
            statements.append(f"{names[later]} = {text}")
            if all(user in names for one in inner for user in one.users):
                found = later, "; ".join([*statements, names[later]]), [*operands, None, None][:2]
        later = later.next
    return found


def joins(node: torch.fx.Node) -> bool:
    """Whether the compiler adds a bias to what uses this node: not where windows or calls read it, or nothing does."""
    return not any(
        user.op == "output"
        or any(word in operation(user) for word in ("pool", "kernelwright"))
        or operation(user) in CALLS
        for user in node.users
    )


CALLS = frozenset(
    f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3)
) | {"linear", "matmul", "bmm", "mm", "addmm", "scaled_dot_product_attention"}  # fmt: skip
