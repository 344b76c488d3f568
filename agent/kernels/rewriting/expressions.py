"""Pointwise operations of a graph as expressions in Triton's language."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from agent.kernels.rewriting.nodes import arguments_of, operation, value_of

#: Gives the name of a node or number, or None where it has none.
Names = Callable[[Any], str | None]


def number(given: Any) -> str | None:
    """A number in Triton's language; None for other arguments."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return repr(float(given)) if math.isfinite(given) else f'float("{given}")'


def is_pointwise(node: torch.fx.Node) -> bool:
    """Whether `expression` knows the operation."""
    name = operation(node)
    return name in ("leaky_relu", "dropout", "to", *_OF_TRUTH, *_BINARY, *_ENDS, *_UNARY)


def expression(node: torch.fx.Node, name_of: Names) -> str | None:
    """An operation on float32 and truth values; None for others."""
    name, given = operation(node), arguments_of(node) if operation(node) else {}
    if name in _OF_TRUTH:
        kinds, form = _OF_TRUTH[name]
        if any(_kind(given[key]) not in (kind, None) for key, kind in kinds.items()):
            return None
        names = [name_of(given[key]) for key in kinds]
        return form.format(*names) if None not in names else None
    if any(_kind(one) != torch.float32 for one in (node, *node.all_input_nodes)):
        return None
    if name == "dropout":
        return name_of(given["input"]) if given["train"] is False else None
    if name == "to":  # of the same type
        return name_of(given["self"])
    return pointwise(node, name_of)


def _kind(given: Any) -> torch.dtype | None:
    """A tensor's dtype; None of a number."""
    value = value_of(given)
    return (
        value.dtype
        if isinstance(value, torch.Tensor)
        else torch.int64
        if isinstance(given, torch.fx.Node)
        else None
    )


def pointwise(node: torch.fx.Node, name_of: Names) -> str | None:
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
#: tanh(x): where exponentials would cancel, its series.
_T = "{x} * {x}"
_SERIES = f"{{x}} * (1.0 - {_T} * (0.3333333333333333 - {_T} * (0.13333333333333333 - {_T} * (0.05396825396825397 - {_T} * 0.021869488536155203))))"
_FAR = "(1.0 - 2.0 / (tl.exp(2.0 * tl.abs({x})) + 1.0))"
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
    "tanh": f"tl.where(tl.abs({{x}}) < 0.25, {_SERIES}, tl.where({{x}} < 0.0, -{_FAR}, {_FAR}))",
}


_TRUTHS = {"self": torch.bool, "other": torch.bool}
_NUMBERS = {"self": torch.float32, "other": torch.float32}
_LARGER = "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
#: Names of arguments with their types, and the expression of them.
_OF_TRUTH: dict[str, tuple[dict[str, torch.dtype], str]] = {
    "masked_fill": ({"mask": torch.bool, "value": torch.float32, "self": torch.float32}, "tl.where({}, {}, {})"),
    "where": ({"condition": torch.bool} | _NUMBERS, "tl.where({}, {}, {})"),
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), (_TRUTHS, "{} | {}")),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), (_TRUTHS, "{} & {}")),
    **{name: (_NUMBERS, f"{{}} {sign} {{}}") for name, sign in
       (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "maximum": (_NUMBERS, _LARGER),
    "minimum": (_NUMBERS, "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"),
    # Equal ones may be infinite.
    "logaddexp": (
        _NUMBERS,
        f"tl.where({{0}} == {{1}}, {{0}} + 0.6931471805599453, {_LARGER} + tl.log(1.0 + tl.exp(-tl.abs({{0}} - {{1}}))))",
    ),
}  # fmt: skip
