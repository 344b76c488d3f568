"""A mean over windows of a convolution's output becomes part of the convolution: both are linear."""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    is_written_between,
    only_used,
    operation,
    spread,
    value_of,
)

#: A mean joins a convolution if that leaves at most this share of the products.
FEWER = 0.7


def merged(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """For a mean over windows of a convolution's output: what gives it with fewer products."""
    name = operation(node)
    if name not in ("avg_pool1d", "avg_pool2d", "avg_pool3d"):
        return None
    axes = int(name[8])
    made_by: Any = only_used(node.args[0])
    if operation(made_by) not in (f"conv{axes}d", f"conv_transpose{axes}d"):
        return None
    if is_written_between(made_by, node):
        return None
    pool, given = arguments_of(node), arguments_of(made_by)
    taps = list(value_of(given["weight"]).shape[2:])
    if (
        pool["ceil_mode"]
        or pool.get("divisor_override")
        or any(spread(pool["padding"], axes))
        or isinstance(given["padding"], str)
        or not all(isinstance(tap, int) for tap in taps)
        or value_of(made_by).dim() != axes + 2
    ):
        return None
    window = spread(pool["kernel_size"], axes)
    hop = spread(pool["stride"] or window, axes)
    step, padding, dilation = (spread(given[key], axes) for key in ("stride", "padding", "dilation"))
    with graph.inserting_before(node):
        if "output_padding" in given:
            if given["groups"] != 1 or any(gap != 1 for gap in dilation):
                return None
            sizes = list(node.meta["val"].shape[2:])
            return _mean_of_transposed(graph, given, step, padding, window, hop, sizes)
        if all((tap, one, pad) == (1, 1, 0) for tap, one, pad in zip(taps, step, padding, strict=True)):
            # Of each pixel alone: the mean comes first.
            first = add_call(graph, node.target, given["input"], *node.args[1:], **node.kwargs)
            return add_call(graph, made_by.target, first, *made_by.args[1:], **made_by.kwargs)
        wide = math.prod(one * (size - 1) + tap for one, size, tap in zip(step, window, taps, strict=True))
        if any(gap != 1 for gap in dilation) or wide > FEWER * math.prod(taps) * math.prod(hop):
            return None
        weight = given["weight"]
        for axis, (one, size) in enumerate(zip(step, window, strict=True)):
            shifts = [(one * at, one * (size - 1 - at)) for at in range(size)]
            weight = _sum(graph, [_padded(graph, weight, axes - 1 - axis, *shift) for shift in shifts])
        weight = add_call(graph, aten.mul.Tensor, weight, 1.0 / math.prod(window))
        steps = [one * more for one, more in zip(step, hop, strict=True)]
        rest = (given["bias"], steps, padding, dilation, given["groups"])
        return add_call(graph, made_by.target, given["input"], weight, *rest)


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
    axes, weight, value = len(step), given["weight"], value_of(given["input"])
    all_taps = value_of(weight).shape[2:]
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
                add_call(graph, aten.slice.Tensor, weight, 2 + axis, at, at + 1)
                for at in places
                if 0 <= at < taps
            ]
            if not each:
                return None
            parts.append(_sum(graph, each))
        weight = add_call(graph, aten.cat.default, parts, 2 + axis)
        fewer *= len(parts) / (stride * taps)
        strides.append(stride)
        pads.append(max(-low, after))
        if (pads[-1] + low) % stride:
            return None
        cuts.append((pads[-1] + low) // stride)
    if fewer > FEWER:
        return None
    weight = add_call(graph, aten.mul.Tensor, weight, 1.0 / math.prod(window))
    weight = add_call(graph, aten.transpose.int, weight, 0, 1)
    convolve = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)[axes - 1]
    out = add_call(graph, convolve, given["input"], weight, given["bias"], strides, pads, [1] * axes, 1)
    for axis, cut in enumerate(cuts):
        if cut or value_of(out).shape[2 + axis] != sizes[axis]:
            out = add_call(graph, aten.slice.Tensor, out, 2 + axis, cut, cut + sizes[axis])
    return out


def _padded(
    graph: torch.fx.Graph, node: torch.fx.Node, from_last: int, before: int, after: int
) -> torch.fx.Node:
    """A tensor with zeros before and after one axis."""
    return add_call(graph, aten.constant_pad_nd.default, node, [0] * (2 * from_last) + [before, after])


def _sum(graph: torch.fx.Graph, nodes: list[torch.fx.Node]) -> torch.fx.Node:
    total = nodes[0]
    for one in nodes[1:]:
        total = add_call(graph, aten.add.Tensor, total, one)
    return total
