"""Norms: LayerNorm with a mean that is exact where a row is constant, means of a GroupNorm from one pass.

The compiler divides a sum by its length, half a unit in the last place off. What is left of a constant row is multiplied by up to
eps^(-1/2) = 316, and a transformer's block with such rows was wrong in the fourth digit. The mean of what remains corrects it, in
the same pass over memory where a row is read once.

A BatchNorm that does not train is a factor and a sum of each channel, which join the convolution before it.

A GroupNorm whose channels are averaged needs means and variances of channels alone: the group's follow from them, and the tensor is
read once in place of twice.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    hint,
    is_written_between,
    only_used,
    operation,
    value_of,
)

#: The compiler reads longer rows again for each sum.
MOST_ONCE = 1024
#: Elements behind a convolution.
LEAST_FIXED = 1 << 20


def steady_norm(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives a LayerNorm's result with a corrected mean, or None for other nodes."""
    if operation(node) != "layer_norm":
        return None
    given = arguments_of(node)
    x: Any = value_of(given["input"])
    size = x.shape[-1]
    if len(given["normalized_shape"]) != 1 or not isinstance(size, int) or not 1 < size <= MOST_ONCE:
        return None
    if x.dtype != torch.float32 or not x.is_contiguous():
        return None
    with graph.inserting_before(node):
        rest = _less_its_mean(graph, given["input"])
        square = add_call(graph, aten.mul.Tensor, rest, rest)
        variance = add_call(graph, aten.mean.dim, square, [-1], True)
        return _affine(graph, _scaled(graph, rest, variance, given["eps"]), given)


def fixed_norm(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives a BatchNorm's result behind a convolution from a factor and a sum of each channel, or None for other nodes."""
    if operation(node) != "batch_norm" or not operation(only_used(node.args[0])).startswith("conv"):
        return None
    given = arguments_of(node)
    x: Any = value_of(given["input"])
    mean, variance = given["running_mean"], given["running_var"]
    # Of a short one a kernel that makes the factors would take as long as what it spares.
    if given["training"] or mean is None or hint(x.numel()) < LEAST_FIXED:
        return None
    values = [value_of(one) for one in (*node.args[:5], node) if one is not None]
    if any(one.dtype != torch.float32 for one in values):
        return None
    with graph.inserting_before(node):
        factor = add_call(graph, aten.rsqrt.default, add_call(graph, aten.add.Tensor, variance, given["eps"]))
        if given["weight"] is not None:
            factor = add_call(graph, aten.mul.Tensor, factor, given["weight"])
        more = add_call(graph, aten.neg.default, add_call(graph, aten.mul.Tensor, mean, factor))
        if given["bias"] is not None:
            more = add_call(graph, aten.add.Tensor, more, given["bias"])
        shape = [-1] + [1] * (x.dim() - 2)
        factor, more = (add_call(graph, aten.view.default, one, shape) for one in (factor, more))
        return add_call(
            graph, aten.add.Tensor, add_call(graph, aten.mul.Tensor, given["input"], factor), more
        )


def mean_of_norm(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives the mean of a GroupNorm over whole channels, or over all of them, from sums of the channels."""
    if operation(node) != "mean" or operation(only_used(node.args[0])) != "group_norm":
        return None
    norm: Any = node.args[0]
    given, of_norm = arguments_of(node), arguments_of(norm)
    x: Any = value_of(of_norm["input"])
    axes, channels, groups = x.dim(), x.shape[1], of_norm["num_groups"]
    dims = sorted(dim % axes for dim in given.get("dim") or range(axes))
    if (
        dims not in (list(range(first, axes)) for first in (1, 2))
        or axes < 3
        or given.get("dtype") is not None
    ):
        return None
    if x.dtype != torch.float32 or not isinstance(channels, int) or is_written_between(norm, node):
        return None
    with graph.inserting_before(node):
        of_channels = add_call(
            graph, aten.var_mean.correction, of_norm["input"], list(range(2, axes)), correction=0
        )
        variance, mean = (
            add_call(
                graph,
                aten.view.default,
                add_call(graph, operator.getitem, of_channels, place),
                [-1, groups, channels // groups],
            )
            for place in (0, 1)
        )
        less = _less_its_mean(graph, mean)
        inside = add_call(graph, aten.add.Tensor, variance, add_call(graph, aten.mul.Tensor, less, less))
        of_groups = add_call(graph, aten.mean.dim, inside, [-1], True)
        out = _scaled(graph, less, of_groups, of_norm["eps"])
        out = _affine(graph, add_call(graph, aten.view.default, out, [-1, channels]), of_norm)
        if 1 in dims:
            out = add_call(graph, aten.mean.dim, out, [1], True)
        kept = [1 if axis in dims else channels for axis in range(1, axes)]
        left = [] if 1 in dims else [channels]
        return add_call(graph, aten.view.default, out, [-1, *(kept if given["keepdim"] else left)])


def _less_its_mean(graph: torch.fx.Graph, x: Any) -> Any:
    """Without the mean along the last axis, and without what rounding has left of it."""
    for _ in range(2):
        x = add_call(graph, aten.sub.Tensor, x, add_call(graph, aten.mean.dim, x, [-1], True))
    return x


def _scaled(graph: torch.fx.Graph, x: torch.fx.Node, variance: torch.fx.Node, eps: float) -> torch.fx.Node:
    root = add_call(graph, aten.rsqrt.default, add_call(graph, aten.add.Tensor, variance, eps))
    return add_call(graph, aten.mul.Tensor, x, root)


def _affine(graph: torch.fx.Graph, x: torch.fx.Node, norm: dict[str, Any]) -> torch.fx.Node:
    for change, other in ((aten.mul.Tensor, norm["weight"]), (aten.add.Tensor, norm["bias"])):
        x = x if other is None else add_call(graph, change, x, other)
    return x
