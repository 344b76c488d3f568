"""Rewrites a captured graph: operations that the library computes become calls of it, which the compiler leaves as they are.

Before that, a mean over windows of a convolution's output becomes part of the convolution: both are linear.

It runs in the sandbox beside the capture program, sent as text, so it imports nothing of this project. The graph comes from
`make_fx(pre_dispatch=True)`. Products need no rewriting: in the compiler's code they are calls already.
"""

from __future__ import annotations

import math
from typing import Any

import torch

aten = torch.ops.aten
#: The compiler reads shorter rows once, too.
LONG_ROW = 8192
#: A mean joins a convolution if that leaves at most this share of the products.
FEWER = 0.7
#: Pointwise operations that join a convolution.
MOST_AFTER = 20
#: Of a head. With fewer, attention is a matter of launches.
LEAST_SCORES = 1 << 16

_LIBRARY = torch.library.Library("kernelwright", "DEF")
_CONVOLUTION = "Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
_LIBRARY.define(f"convolution({_CONVOLUTION}, Tensor? bias, str after, Tensor? one, Tensor? two) -> Tensor")
_LIBRARY.define(
    "mean_pool(Tensor x, int[] taps, int[] stride, int[] padding, bool inside, int divisor) -> Tensor"
)
_LIBRARY.define("max_pool(Tensor x, int[] taps, int[] stride, int[] padding, int[] dilation) -> Tensor")
_LIBRARY.define("softmax(Tensor x, bool log) -> Tensor")
_LIBRARY.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? excluded, float? scale, bool causal) -> Tensor"
)


@torch.library.register_fake("kernelwright::convolution", lib=_LIBRARY)
def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
    bias: torch.Tensor | None,
    after: str,
    one: torch.Tensor | None,
    two: torch.Tensor | None,
) -> torch.Tensor:
    out = aten.convolution(x, weight, None, stride, padding, dilation, transposed, more, groups)
    return x.new_empty(out.shape)


@torch.library.register_fake("kernelwright::mean_pool", lib=_LIBRARY)
def _mean_pool(
    x: torch.Tensor, taps: Any, stride: Any, padding: Any, inside: bool, divisor: int
) -> torch.Tensor:
    return x.new_empty(_pooled(x, taps, stride, padding, [1] * len(taps)))


@torch.library.register_fake("kernelwright::max_pool", lib=_LIBRARY)
def _max_pool(x: torch.Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return x.new_empty(_pooled(x, taps, stride, padding, dilation))


@torch.library.register_fake("kernelwright::softmax", lib=_LIBRARY)
def _softmax(x: torch.Tensor, log: bool) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("kernelwright::attention", lib=_LIBRARY)
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    excluded: torch.Tensor | None,
    scale: float | None,
    causal: bool,
) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _pooled(x: torch.Tensor, taps: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    axes = zip(x.shape[2:], taps, stride, padding, dilation, strict=True)
    return [
        *x.shape[:2],
        *((size + 2 * pad - gap * (tap - 1) - 1) // step + 1 for size, tap, step, pad, gap in axes),
    ]


def rewrite(graph: torch.fx.GraphModule) -> int:
    """Replace the operations in place; returns how many were."""
    changed = 0
    for node in list(graph.graph.nodes):
        merged = _merged(graph.graph, node) if node.op == "call_function" else None
        if merged is not None:
            _replace(graph.graph, node, merged)
            changed += 1
    graph.graph.eliminate_dead_code()
    for node in list(graph.graph.nodes):
        made = _made_of(node) if node.op == "call_function" else None
        if made is None:
            continue
        name, args, bias = made
        if name == "convolution" and args[7] == 1:
            last, after, operands = _pointwise_after(node)
            if after and not _joins(last):
                # Before the compiler reads the output once more.
                args[8:], bias, node = [_arguments(node)["bias"], after, *operands], None, last
        with graph.graph.inserting_before(node):
            new = graph.graph.call_function(getattr(torch.ops.kernelwright, name).default, tuple(args))
            if bias is not None:
                # Added apart, the bias joins whatever pointwise operations follow.
                shape = [-1] + [1] * (node.meta["val"].dim() - 2)
                new.meta["val"] = node.meta["val"]
                new = graph.graph.call_function(
                    aten.add.Tensor, (new, graph.graph.call_function(aten.view.default, (bias, shape)))
                )
        new.meta["val"] = node.meta["val"]
        _replace(graph.graph, node, new)
        changed += 1
    graph.recompile()
    return changed


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, new: torch.fx.Node) -> None:
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _merged(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """For a mean over windows of a convolution's output: what gives it with fewer products."""
    name = _name(node)
    if name not in ("avg_pool1d", "avg_pool2d", "avg_pool3d"):
        return None
    axes = int(name[8])
    made_by: Any = _only(node.args[0])
    if _name(made_by) not in (f"conv{axes}d", f"conv_transpose{axes}d"):
        return None
    if _is_written_between(made_by, node):
        return None
    pool, given = _arguments(node), _arguments(made_by)
    taps = list(_value(given["weight"]).shape[2:])
    if (
        pool["ceil_mode"]
        or pool.get("divisor_override")
        or any(_spread(pool["padding"], axes))
        or isinstance(given["padding"], str)
        or not all(isinstance(tap, int) for tap in taps)
        or _value(made_by).dim() != axes + 2
    ):
        return None
    window = _spread(pool["kernel_size"], axes)
    hop = _spread(pool["stride"] or window, axes)
    step, padding, dilation = (_spread(given[key], axes) for key in ("stride", "padding", "dilation"))
    with graph.inserting_before(node):
        if "output_padding" in given:
            if given["groups"] != 1 or any(gap != 1 for gap in dilation):
                return None
            sizes = list(node.meta["val"].shape[2:])
            return _mean_of_transposed(graph, given, step, padding, window, hop, sizes)
        if all((tap, one, pad) == (1, 1, 0) for tap, one, pad in zip(taps, step, padding, strict=True)):
            # Of each pixel alone: the mean comes first.
            first = _call(graph, node.target, given["input"], *node.args[1:], **node.kwargs)
            return _call(graph, made_by.target, first, *made_by.args[1:], **made_by.kwargs)
        wide = math.prod(one * (size - 1) + tap for one, size, tap in zip(step, window, taps, strict=True))
        if any(gap != 1 for gap in dilation) or wide > FEWER * math.prod(taps) * math.prod(hop):
            return None
        weight = given["weight"]
        for axis, (one, size) in enumerate(zip(step, window, strict=True)):
            shifts = [(one * at, one * (size - 1 - at)) for at in range(size)]
            weight = _sum(graph, [_padded(graph, weight, axes - 1 - axis, *shift) for shift in shifts])
        weight = _call(graph, aten.mul.Tensor, weight, 1.0 / math.prod(window))
        steps = [one * more for one, more in zip(step, hop, strict=True)]
        rest = (given["bias"], steps, padding, dilation, given["groups"])
        return _call(graph, made_by.target, given["input"], weight, *rest)


def _mean_of_transposed(
    graph: torch.fx.Graph,
    given: dict[str, Any],
    step: list[int],
    padding: list[int],
    window: list[int],
    hop: list[int],
    sizes: list[Any],
) -> torch.fx.Node | None:
    """The mean over windows of a transposed convolution: where windows move by whole strides, a convolution.

    Output o of an axis is the sum over inputs i of tap o + padding - stride * i. So the mean of outputs hop * y + v for v below
    the window is the sum over j of input (hop / stride) * y + j times the mean over v of tap v + padding - stride * j.
    """
    axes, weight, value = len(step), given["weight"], _value(given["input"])
    all_taps = _value(weight).shape[2:]
    strides, pads, cuts = [], [], []
    fewer = 1.0
    for axis, (one, pad, size, more, taps) in enumerate(
        zip(step, padding, window, hop, all_taps, strict=True)
    ):
        low, high = -((taps - 1 - pad) // one), (size - 1 + pad) // one
        stride = more // one
        after = stride * (sizes[axis] - 1) + high + 1 - value.shape[2 + axis]
        if more % one or low > 0 or not isinstance(after, int):
            return None
        parts = []
        for j in range(low, high + 1):
            places = [v + pad - one * j for v in range(size)]
            each = [
                _call(graph, aten.slice.Tensor, weight, 2 + axis, at, at + 1)
                for at in places
                if 0 <= at < taps
            ]
            if not each:
                return None
            parts.append(_sum(graph, each))
        weight = _call(graph, aten.cat.default, parts, 2 + axis)
        fewer *= len(parts) / (stride * taps)
        strides.append(stride)
        pads.append(max(-low, after))
        if (pads[-1] + low) % stride:
            return None
        cuts.append((pads[-1] + low) // stride)
    if fewer > FEWER:
        return None
    weight = _call(graph, aten.mul.Tensor, weight, 1.0 / math.prod(window))
    weight = _call(graph, aten.transpose.int, weight, 0, 1)
    convolve = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)[axes - 1]
    out = _call(graph, convolve, given["input"], weight, given["bias"], strides, pads, [1] * axes, 1)
    for axis, cut in enumerate(cuts):
        if cut or _value(out).shape[2 + axis] != sizes[axis]:
            out = _call(graph, aten.slice.Tensor, out, 2 + axis, cut, cut + sizes[axis])
    return out


def _padded(
    graph: torch.fx.Graph, node: torch.fx.Node, from_last: int, before: int, after: int
) -> torch.fx.Node:
    """A tensor with zeros before and after one axis."""
    return _call(graph, aten.constant_pad_nd.default, node, [0] * (2 * from_last) + [before, after])


def _call(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A new node with the value that it has for fake tensors."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.node.map_arg((args, kwargs), lambda one: one.meta["val"])
    mode = next(one.meta["val"].fake_mode for one in node.all_input_nodes)
    with mode:
        node.meta["val"] = target(*values[0], **values[1])
    return node


def _sum(graph: torch.fx.Graph, nodes: list[torch.fx.Node]) -> torch.fx.Node:
    total = nodes[0]
    for one in nodes[1:]:
        total = _call(graph, aten.add.Tensor, total, one)
    return total


def _pointwise_after(node: torch.fx.Node) -> tuple[torch.fx.Node, str, list[Any]]:
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
            value = _value(given)
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
            most = 2 if all(_value(one).numel() == out.shape[1] for one in held) else 1
            if len(held) > most:
                return None
            return operands.setdefault(given, "ab"[len(operands)])
        is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
        return repr(float(given)) if is_number else None

    later = node.next
    while later.op != "output" and len(statements) < MOST_AFTER and not _writes(later):
        if any(one in names for one in later.all_input_nodes):
            text = _pointwise(later, name_of)
            if text is None or later.meta["val"].shape != out.shape:
                break
            inner = list(names)
            names[later] = f"t{len(statements)}"
            statements.append(f"{names[later]} = {text}")
            if all(user in names for one in inner for user in one.users):
                found = later, "; ".join([*statements, names[later]]), [*operands, None, None][:2]
        later = later.next
    return found


def _pointwise(node: torch.fx.Node, name_of: Any) -> str | None:
    """An operation in Triton's language, on names and numbers that `name_of` gives; NaN stays NaN."""
    name, given = _name(node), _arguments(node)
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


def _joins(node: torch.fx.Node) -> bool:
    """Whether the compiler adds a bias to what uses this node: not where windows or calls read it, or nothing does."""
    return not any(
        user.op == "output" or "pool" in _name(user) or _name(user) in _CALLS for user in node.users
    )


_CALLS = frozenset(
    f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3)
) | {"linear", "matmul", "bmm", "mm", "addmm", "scaled_dot_product_attention"}  # fmt: skip


def _name(node: Any) -> str:
    """Of an operation of torch's, without its overload; else empty."""
    schema = getattr(node.target, "_schema", None) if isinstance(node, torch.fx.Node) else None
    return schema.name.removeprefix("aten::") if schema is not None else ""


def _writes(node: Any) -> bool:
    """Whether an operation changes a tensor in place; nothing moves past one."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_written_between(first: Any, last: Any) -> bool:
    """Whether an operation between two others changes a tensor in place."""
    while first is not last:
        first = first.next
        if _writes(first):
            return True
    return False


def _arguments(node: Any) -> dict[str, Any]:
    """By name, defaults among them."""
    given: dict[str, Any] = {one.name: one.default_value for one in node.target._schema.arguments}
    return given | dict(zip(given, node.args, strict=False)) | node.kwargs


def _made_of(node: torch.fx.Node) -> tuple[str, list[Any], torch.fx.Node | None] | None:
    """The library's operation for a node: its name, arguments, and a bias to add."""
    name = _name(node)
    if not name or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    given = _arguments(node)
    first = node.args[0] if node.args else None
    if not isinstance(first, torch.fx.Node):
        return None
    if name in ("matmul", "scaled_dot_product_attention"):
        found = _attention_of(node, given)
        return ("attention", found, None) if found else None
    x = first.meta.get("val")
    if not isinstance(x, torch.Tensor) or not x.is_contiguous():
        return None
    axes = x.dim() - 2
    if name in ("softmax", "log_softmax"):
        dim = given["dim"] % x.dim()
        # Alone, between an input and an output: elsewhere the compiler fuses it with its neighbors.
        alone = first.op == "placeholder" and all(user.op == "output" for user in node.users)
        is_long = dim == x.dim() - 1 and _hint(x.shape[-1]) >= LONG_ROW
        if alone and is_long and given["dtype"] is None and x.dtype == torch.float32:
            return "softmax", [first, name == "log_softmax"], None
    elif name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        transposed = "transpose" in name
        pads = given["padding"]
        if x.dtype == torch.float32 and axes == int(name[-2]) and not isinstance(pads, str):
            spread = {key: _spread(given[key], axes) for key in ("stride", "padding", "dilation")}
            more = _spread(given["output_padding"], axes) if transposed else [0] * axes
            apart = given["bias"] if given["groups"] > 1 or _joins(node) else None
            within = None if apart is not None else given["bias"]
            args = [first, given["weight"], *spread.values(), transposed, more, given["groups"], within]
            return "convolution", [*args, "", None, None], apart
    elif name in ("avg_pool1d", "avg_pool2d", "avg_pool3d") and axes == int(name[8]):
        taps = _spread(given["kernel_size"], axes)
        stride = _spread(given["stride"] or taps, axes)
        padding = _spread(given["padding"], axes)
        if not given["ceil_mode"] and _pays_to_pool(taps, stride):
            inside = not given["count_include_pad"] and any(padding)
            divisor = given.get("divisor_override") or 0
            return "mean_pool", [first, taps, stride, padding, inside and not divisor, divisor], None
    elif (
        name in ("max_pool1d", "max_pool2d", "max_pool3d") and axes == int(name[8]) and not given["ceil_mode"]
    ):
        taps = _spread(given["kernel_size"], axes)
        stride = _spread(given["stride"] or taps, axes)
        rest = [_spread(given[key], axes) for key in ("padding", "dilation")]
        if _pays_to_pool(taps, stride):
            return "max_pool", [first, taps, stride, *rest], None
    return None


def _attention_of(node: Any, given: dict[str, Any]) -> list[Any] | None:
    """The arguments of `attention` for a call of torch's, or for softmax(scale * q k^T, masked) v written out."""
    excluded: Any = None
    causal, scale = False, None  # of torch's call: the head's size to the power of -1/2
    if "is_causal" in given:
        q, k, v = given["query"], given["key"], given["value"]
        if given["attn_mask"] is not None or given["dropout_p"] or given["enable_gqa"]:
            return None
        causal, scale = given["is_causal"], given["scale"]
    else:
        weights, v, scale = _only(node.args[0]), node.args[1], 1.0
        if _is(weights, "dropout") and weights.args[2] is False:
            weights = _only(weights.args[0])
        if not _is(weights, "softmax") or weights.args[1] not in (-1, 3) or len(weights.args) > 2:
            return None
        scores = _only(weights.args[0])
        while not _is(scores, "matmul"):
            if _is(scores, "masked_fill") and excluded is None and scores.args[2] == -math.inf:
                excluded = scores.args[1]
            elif _is(scores, "mul") and isinstance(scores.args[1], int | float) and scores.args[1] > 0:
                scale *= scores.args[1]
            elif _is(scores, "div") and isinstance(scores.args[1], int | float) and scores.args[1] > 0:
                scale /= scores.args[1]
            else:
                return None
            scores = _only(scores.args[0])
        if _is_written_between(scores, node):
            return None
        q, k = scores.args
        if not _is(k, "transpose") or sorted(axis % 4 for axis in k.args[1:]) != [2, 3]:
            return None
        k = k.args[0]
    each = [_value(one) for one in (q, k, v)]
    if not all(
        isinstance(one, torch.Tensor) and one.dim() == 4 and one.dtype == torch.float32 for one in each
    ):
        return None
    if excluded is not None and (_value(excluded).dtype != torch.bool or _value(excluded).dim() > 4):
        return None
    if _hint(each[0].shape[2]) * _hint(each[1].shape[2]) < LEAST_SCORES:
        return None
    alike = [one.shape[:2] + one.shape[3:] for one in each]
    return [q, k, v, excluded, scale, causal] if alike[0] == alike[1] == alike[2] else None


def _is(node: Any, name: str) -> bool:
    return _name(node) == name


def _only(node: Any) -> Any:
    """A node that has no other user, else None."""
    return node if isinstance(node, torch.fx.Node) and len(node.users) == 1 else None


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _pays_to_pool(taps: list[int], stride: list[int]) -> bool:
    """The compiler fuses small windows with what surrounds them; it does not compute means of more than 25 taps."""
    count = math.prod(taps)
    return count > 25 or (count >= 16 and any(step < tap for step, tap in zip(stride, taps, strict=True)))


def _spread(value: Any, axes: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * axes if len(values) == 1 else values


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
