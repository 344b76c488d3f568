"""Short depthwise convolutions of one dimension as sums of shifted products, which the compiler fuses with what is around them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from agent.kernels.rewriting.nodes import add_call, arguments_of, aten, is_operation, spread, value_of

#: Of a channel; each is a load of its own.
MOST_TAPS = 8


def short_convolution(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """The sum in place of a convolution of each channel with a few taps, or None for other nodes."""
    if not is_operation(node, "conv1d"):
        return None
    given = arguments_of(node)
    x, weight = value_of(given["input"]), value_of(given["weight"])
    if isinstance(given["padding"], str) or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return None
    channels, per_group, taps = weight.shape
    if (
        per_group != 1
        or str(channels) != str(given["groups"])
        or not isinstance(taps, int)
        or taps > MOST_TAPS
    ):
        return None
    stride, padding, dilation = (spread(given[name], 1)[0] for name in ("stride", "padding", "dilation"))
    with graph.inserting_before(node):
        padded = given["input"]
        if padding:
            padded = add_call(graph, aten.constant_pad_nd.default, padded, [padding, padding])
        total: Any = None
        for tap in range(taps):
            after = (taps - 1 - tap) * dilation
            shifted = add_call(
                graph, aten.slice.Tensor, padded, -1, tap * dilation, -after if after else sys.maxsize, stride
            )
            of_tap = add_call(graph, aten.slice.Tensor, given["weight"], 2, tap, tap + 1)
            product = add_call(graph, aten.mul.Tensor, shifted, add_call(graph, aten.squeeze.dim, of_tap, 1))
            total = product if total is None else add_call(graph, aten.add.Tensor, total, product)
        if given["bias"] is not None:
            total = add_call(
                graph, aten.add.Tensor, total, add_call(graph, aten.unsqueeze.default, given["bias"], -1)
            )
        return total
