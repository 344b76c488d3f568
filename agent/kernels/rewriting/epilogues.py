"""Pointwise operations that follow a convolution are computed by it, where the compiler would read its output again."""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.nodes import arguments_of, operation, value_of, writes

#: Pointwise operations that join a convolution.
MOST_AFTER = 20


def pointwise_after(node: torch.fx.Node) -> tuple[torch.fx.Node, str, list[Any]]:
    """Pointwise operations on a convolution's output of which nothing but the last result is used elsewhere.

    Returns:
        The last; statements, of which the last is an expression, on the output's element `x` and two operands `a` and `b`; and
        those operands.
    """
    names, operands, statements = {node: "x"}, dict[torch.fx.Node, str](), list[str]()
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
            text = pointwise(later, name_of)
            if text is None or later.meta["val"].shape != out.shape:
                break
            inner = list(names)
            names[later] = f"t{len(statements)}"
            statements.append(f"{names[later]} = {text}")
            if all(user in names for one in inner for user in one.users):
                found = later, "; ".join([*statements, names[later]]), [*operands, None, None][:2]
        later = later.next
    return found


def pointwise(node: torch.fx.Node, name_of: Any) -> str | None:
    """An operation in Triton's language, on names and numbers that `name_of` gives; NaN stays NaN."""
    name, given = operation(node), arguments_of(node)
    if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
        return None
    if name in _BINARY:
        left, right = name_of(given["self"]), name_of(given["other"])
        return f"{left} {_BINARY[name]} {right}" if left and right else None
    if name not in ("leaky_relu", *_ENDS, *_UNARY) or given.get("approximate", "none") != "none":
        return None
    x = name_of(given["self"])
    if x is None:
        return None
    if name == "leaky_relu":
        slope = name_of(given["negative_slope"])
        return f"tl.where({x} > 0.0, {x}, {x} * {slope})" if slope else None
    if name in _ENDS:
        text = x
        for end, sign in zip(_ENDS[name], "<>", strict=True):
            value = given[end] if isinstance(end, str) else end
            if value is not None:
                limit = None if isinstance(value, torch.fx.Node) else name_of(value)
                if limit is None:
                    return None
                text = f"tl.where({text} {sign} {limit}, {limit}, {text})"
        return text
    return _UNARY[name].format(x=x)


_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
#: The arguments, or numbers, between which these keep values.
_ENDS: dict[str, tuple[Any, Any]] = {
    "clamp": ("min", "max"),
    "clamp_min": ("min", None),
    "clamp_max": (None, "max"),
    "hardtanh": ("min_val", "max_val"),
    "relu6": (0.0, 6.0),
}
_SIX = "tl.where({x} < -3.0, 0.0, tl.where({x} > 3.0, 6.0, {x} + 3.0))"
_E = "tl.exp({x}) * (tl.exp({x}) + 2.0)"
_UNARY = {
    "clone": "{x}",
    "detach": "{x}",
    "relu": "tl.where({x} < 0.0, 0.0, {x})",
    "sigmoid": "tl.sigmoid({x})",
    "silu": "{x} * tl.sigmoid({x})",
    "gelu": "0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))",
    "hardsigmoid": f"{_SIX} / 6.0",
    "hardswish": f"{{x}} * {_SIX} / 6.0",
    "mish": f"tl.where({{x}} > 20.0, {{x}}, {{x}} * ({_E}) / ({_E} + 2.0))",
    "neg": "-{x}",
    "exp": "tl.exp({x})",
    "abs": "tl.abs({x})",
}


def joins(node: torch.fx.Node) -> bool:
    """Whether the compiler adds a bias to what uses this node: not where windows or calls read it, or nothing does."""
    return not any(
        user.op == "output" or "pool" in operation(user) or operation(user) in CALLS for user in node.users
    )


CALLS = frozenset(
    f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3)
) | {"linear", "matmul", "bmm", "mm", "addmm", "scaled_dot_product_attention"}  # fmt: skip
