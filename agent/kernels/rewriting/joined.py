"""Convolutions whose results are put side by side write them there, where torch would copy each."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.epilogues import pointwise_after
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    is_operation,
    is_written_between,
    only_used,
    spread,
    value_of,
)


def joined_convolutions(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives the result of a `cat` of convolutions along channels, with what follows each; None for other nodes."""
    value = value_of(node)
    if not is_operation(node, "cat") or value.dim() < 3 or arguments_of(node)["dim"] % value.dim() != 1:
        return None
    made = [_convolution_before(one, node) for one in arguments_of(node)["tensors"]]
    found = [one for one in made if one is not None]
    convolutions = {convolution for convolution, _ in found}
    if not 1 < len(convolutions) == len(made) or len({text for _, text in found}) > 1:
        return None
    if is_written_between(min(convolutions), node):  # all are computed in the node's place
        return None
    forms = list[int]()
    for convolution, _ in found:
        given = arguments_of(convolution)
        for key in ("stride", "padding", "dilation"):
            forms += spread(given[key], value.dim() - 2)
    each = [arguments_of(convolution) for convolution, _ in found]
    inputs = list(dict.fromkeys(given["input"] for given in each))
    which = [inputs.index(given["input"]) for given in each]
    operands = [[given[key] for given in each] for key in ("weight", "bias")]
    with graph.inserting_before(node):
        target = torch.ops.kernelwright.convolutions.default
        return add_call(graph, target, inputs, which, *operands, forms, found[0][1])


def _convolution_before(last: Any, node: torch.fx.Node) -> tuple[torch.fx.Node, str] | None:
    """The convolution whose result becomes one operand of a node, which alone uses it, by pointwise operations, and their text."""
    first = only_used(last)
    while first is not None and not is_operation(first, f"conv{value_of(node).dim() - 2}d"):
        inputs = first.all_input_nodes
        first = only_used(inputs[0]) if len(inputs) == 1 else None
    if first is None:
        return None
    given = arguments_of(first)
    x, weight = value_of(given["input"]), value_of(given["weight"])
    fits = given["groups"] == 1 and not isinstance(given["padding"], str) and x.is_contiguous()
    if not fits or any(one.dtype != torch.float32 for one in (x, weight, value_of(first))):
        return None
    end, text, operands = pointwise_after(first)
    return (first, text) if end is last and operands == [None, None] else None
