"""Attention whose weights are a pointwise function of the scores in place of a softmax: ReLU, a decay, gates."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.expressions import expression, is_pointwise, number
from agent.kernels.rewriting.nodes import is_operation, is_written_between, same_sizes, value_of


def weights_of(node: torch.fx.Node) -> tuple[Any, Any, str] | None:
    """Scores, a tensor that expands to their shape or None, and text of the weights that ``node`` multiplies with values.

    The text has statements, of which the last is an expression, on a score `x` and the tensor's element `m`; None for other products.
    """
    weights: Any = node.args[0]
    value = value_of(weights)
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.dtype != torch.float32:
        return None
    left, seen, products = [weights], set[torch.fx.Node](), set[torch.fx.Node]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        if is_operation(one, "matmul") and same_sizes(value_of(one), value):
            products.add(one)
        elif is_pointwise(one):
            seen.add(one)
            left += one.all_input_nodes
    if len(products) != 1:
        return None
    scores = products.pop()
    between = [scores]
    for one in node.graph.nodes:
        if one in seen and any(each in between for each in one.all_input_nodes):
            between.append(one)
    alone = all(user is node or user in between for one in between for user in one.users)
    if weights not in between[1:] or not alone or is_written_between(scores, node):
        return None
    names, others, statements = {scores: "x"}, list[torch.fx.Node](), list[str]()

    def name_of(given: Any) -> str | None:
        if not isinstance(given, torch.fx.Node):
            return number(given)
        if given in names or given in between:
            return names.get(given)
        other = value_of(given)
        if (
            not isinstance(other, torch.Tensor)
            or other.dtype not in (torch.bool, torch.float32)
            or other.device != value.device
            or others not in ([], [given])
        ):
            return None
        others[:] = [given]
        return "(m != 0)" if other.dtype == torch.bool else "m"

    for one in between[1:]:
        text = expression(one, name_of)
        if text is None:
            return None
        names[one] = f"t{len(statements)}"
        statements.append(f"{names[one]} = {text}")
    return scores, (*others, None)[0], "; ".join([*statements, names[weights]])
