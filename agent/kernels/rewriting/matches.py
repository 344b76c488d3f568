"""Which operation of the library computes a node."""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.epilogues import joins
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    hint,
    is_operation,
    is_written_between,
    only_used,
    operation,
    same_sizes,
    scaled,
    spread,
    value_of,
)
from agent.kernels.rewriting.weights import weights_of

#: Columns of rows whose softmax the library computes: shorter ones and those between the compiler computes as fast or faster.
SHORTEST_ROW, MIDDLE_ROW, LONGEST_ROW = 2048, 8192, 32768
_HALVES = (torch.float16, torch.bfloat16)
#: Of a head. With fewer, attention is a matter of launches.
LEAST_SCORES = 1 << 16


def made_of(node: torch.fx.Node) -> tuple[str, list[Any], torch.fx.Node | None] | None:
    """The library's operation for a node: its name, arguments, and a bias to add."""
    name = operation(node)
    if not name or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    given = arguments_of(node)
    first = node.args[0] if node.args else None
    if not isinstance(first, torch.fx.Node):
        return None
    if name in ("matmul", "scaled_dot_product_attention"):
        found = _attention_of(node, given)
        return ("attention", found, None) if found else None
    x = first.meta.get("val")
    if name in ("cdist", "_cdist_forward"):
        found = _distances_of(given)
        return ("distances", found, None) if found else None
    # Under autocast an operation of float32 tensors gives another type.
    if not isinstance(x, torch.Tensor) or not x.is_contiguous() or node.meta["val"].dtype != x.dtype:
        return None
    axes = x.dim() - 2
    if name in ("softmax", "log_softmax") and x.dim() > 0:
        dim = given["dim"] % x.dim()
        # Alone, between an input and an output: elsewhere the compiler fuses it with its neighbors.
        alone = first.op == "placeholder" and all(user.op == "output" for user in node.users)
        cols = hint(x.shape[-1])
        pays = SHORTEST_ROW <= cols <= MIDDLE_ROW or cols > LONGEST_ROW
        if alone and dim == x.dim() - 1 and pays and given["dtype"] is None and x.dtype == torch.float32:
            return "softmax", [first, name == "log_softmax"], None
    elif name == "logcumsumexp":
        if x.dim() > 0 and given["dim"] % x.dim() == x.dim() - 1 and x.dtype == torch.float32:
            return "running_logsumexp", [first], None
    elif name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        transposed = "transpose" in name
        pads = given["padding"]
        if x.dtype == torch.float32 and axes == int(name[-2]) and not isinstance(pads, str):
            each = {key: spread(given[key], axes) for key in ("stride", "padding", "dilation")}
            more = spread(given["output_padding"], axes) if transposed else [0] * axes
            apart = given["bias"] if given["groups"] > 1 or joins(node) else None
            within = None if apart is not None else given["bias"]
            args = [first, given["weight"], *each.values(), transposed, more, given["groups"], within]
            return "convolution", [*args, "", None, None], apart
    elif name in ("avg_pool1d", "avg_pool2d", "avg_pool3d") and axes == int(name[8]):
        taps = spread(given["kernel_size"], axes)
        stride = spread(given["stride"] or taps, axes)
        padding = spread(given["padding"], axes)
        if not given["ceil_mode"] and _pays_to_pool(taps, stride):
            inside = not given["count_include_pad"] and any(padding)
            divisor = given.get("divisor_override") or 0
            return "mean_pool", [first, taps, stride, padding, inside and not divisor, divisor], None
    elif (
        name in ("max_pool1d", "max_pool2d", "max_pool3d") and axes == int(name[8]) and not given["ceil_mode"]
    ):
        taps = spread(given["kernel_size"], axes)
        stride = spread(given["stride"] or taps, axes)
        rest = [spread(given[key], axes) for key in ("padding", "dilation")]
        if _pays_to_pool(taps, stride):
            return "max_pool", [first, taps, stride, *rest], None
    return None


def _attention_of(node: Any, given: dict[str, Any]) -> list[Any] | None:
    """The arguments of `attention` for a call of torch's, or for softmax(scale * q k^T, masked) v or other weights written out."""
    excluded: Any = None
    causal, safe, element = False, False, ""
    scale: Any = None  # of torch's call: the head's size to the power of -1/2
    if "is_causal" in given:
        q, k, v = given["query"], given["key"], given["value"]
        if given["dropout_p"] or given["enable_gqa"]:
            return None
        causal, safe, scale, excluded = given["is_causal"], True, given["scale"], given["attn_mask"]
        if causal and excluded is not None:
            return None
    elif (found := weights_of(node)) is not None:
        scores, excluded, element = found
        (q, k), v, scale = scores.args, node.args[1], 1.0
    else:
        # Torch's fused kernels compute weights of 16-bit numbers in float32.
        casts = ("_to_copy", "to") if value_of(node).dtype in _HALVES else ()
        weights, v, scale = only_used(node.args[0]), node.args[1], 1.0
        while (operation(weights) in casts and value_of(weights).dtype in (*_HALVES, torch.float32)) or (
            is_operation(weights, "dropout") and weights.args[2] is False
        ):
            weights = only_used(weights.args[0])
        dtypes = (None, torch.float32) if casts else (None,)
        if (
            not is_operation(weights, "softmax")
            or weights.args[1] not in (-1, 3)
            or arguments_of(weights)["dtype"] not in dtypes
        ):
            return None
        scores = only_used(weights.args[0])
        while not is_operation(scores, "matmul"):
            if operation(scores) in casts and value_of(scores).dtype == torch.float32:
                pass
            elif is_operation(scores, "masked_fill") and excluded is None and scores.args[2] == -math.inf:
                excluded = scores.args[1]
            elif (more := scaled(scale, scores)) is not None:
                scale = more
            else:
                return None
            scores = only_used(scores.args[0])
        if is_written_between(scores, node):
            return None
        q, k = scores.args
    if "is_causal" not in given:
        if not is_operation(k, "transpose") or sorted(axis % 4 for axis in k.args[1:]) != [2, 3]:
            return None
        k = k.args[0]
    each = [value_of(one) for one in (q, k, v)]
    dtype = value_of(node).dtype
    if dtype not in (_HALVES if not element else ()) + (torch.float32,) or not all(
        isinstance(one, torch.Tensor) and one.dim() == 4 and one.dtype == dtype for one in each
    ):
        return None
    kinds = (torch.bool, torch.float32) if element else (torch.bool,)
    if excluded is not None and (value_of(excluded).dtype not in kinds or value_of(excluded).dim() > 4):
        return None
    if hint(each[0].shape[2]) * hint(each[1].shape[2]) < LEAST_SCORES:
        return None
    alike = [one.shape[:2] + one.shape[3:] for one in each]
    if not alike[0] == alike[1] == alike[2]:
        return None
    # A mask may have more batches or heads than the scores.
    if not same_sizes(value_of(node), each[0]):
        return None
    if safe and excluded is not None:  # torch's mask says which keys count
        with node.graph.inserting_before(node):
            excluded = add_call(node.graph, aten.logical_not.default, excluded)
    return [q, k, v, excluded, scale, causal, safe, element]


def _distances_of(given: dict[str, Any]) -> list[Any] | None:
    """The arguments of `distances` for torch's, where that does not multiply matrices: from 26 points, it may."""
    x, z = value_of(given["x1"]), value_of(given["x2"])
    multiplies = given["p"] == 2 and given["compute_mode"] != 2
    if multiplies and (given["compute_mode"] == 1 or max(hint(x.shape[-2]), hint(z.shape[-2])) > 25):
        return None
    alike = x.dim() == z.dim() and x.dim() in (2, 3) and x.shape[:-2] == z.shape[:-2]
    if not alike or x.dtype != torch.float32 or z.dtype != torch.float32 or given["p"] not in (1.0, 2.0):
        return None
    return [given["x1"], given["x2"], given["p"] == 2.0]


def _pays_to_pool(taps: list[int], stride: list[int]) -> bool:
    """The compiler fuses small windows with what surrounds them; it does not compute means of more than 25 taps."""
    count = math.prod(taps)
    return count > 25 or (count >= 16 and any(step < tap for step, tap in zip(stride, taps, strict=True)))
