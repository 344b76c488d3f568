"""LayerNorm with a mean that is exact where a row is constant.

The compiler divides a sum by its length, half a unit in the last place off. What is left of a constant row is multiplied by up to
eps^(-1/2) = 316, and a transformer's block with such rows was wrong in the fourth digit. The mean of what remains corrects it, in
the same pass over memory where a row is read once.
"""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, arguments_of, aten, operation, value_of

#: The compiler reads longer rows again for each sum.
MOST_ONCE = 1024


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
        rest = given["input"]
        for _ in range(2):
            mean = add_call(graph, aten.mean.dim, rest, [-1], True)
            rest = add_call(graph, aten.sub.Tensor, rest, mean)
        square = add_call(graph, aten.mul.Tensor, rest, rest)
        variance = add_call(graph, aten.mean.dim, square, [-1], True)
        scale = add_call(graph, aten.rsqrt.default, add_call(graph, aten.add.Tensor, variance, given["eps"]))
        out = add_call(graph, aten.mul.Tensor, rest, scale)
        for change, other in ((aten.mul.Tensor, given["weight"]), (aten.add.Tensor, given["bias"])):
            out = out if other is None else add_call(graph, change, out, other)
        return out
