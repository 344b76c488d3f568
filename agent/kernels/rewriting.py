"""Rewrites a captured graph: operations that the library computes become calls of it, which the compiler leaves as they are.

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
#: Of a head. With fewer, attention is a matter of launches.
LEAST_SCORES = 1 << 16

_LIBRARY = torch.library.Library("kernelwright", "DEF")
_CONVOLUTION = "Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
_LIBRARY.define(f"convolution({_CONVOLUTION}) -> Tensor")
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
        made = _made_of(node) if node.op == "call_function" else None
        if made is None:
            continue
        name, args, bias = made
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
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
        changed += 1
    graph.recompile()
    return changed


def _made_of(node: torch.fx.Node) -> tuple[str, list[Any], torch.fx.Node | None] | None:
    """The library's operation for a node: its name, arguments, and a bias to add."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    given: dict[str, Any] = {one.name: one.default_value for one in schema.arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    name = schema.name.removeprefix("aten::")
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
            args = [first, given["weight"], *spread.values(), transposed, more, given["groups"]]
            return "convolution", args, given["bias"]
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
    return isinstance(node, torch.fx.Node) and str(node.target).split(".")[:2] == ["aten", name]


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
