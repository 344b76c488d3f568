"""The weights of an attention: pointwise operations on scores, of a softmax's argument or in place of one: ReLU, a decay, gates, caps."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.expressions import expression, is_pointwise, number
from agent.kernels.rewriting.nodes import is_operation, is_written_between, same_sizes, value_of


def product_before(weights: Any) -> torch.fx.Node | None:
    """The one product of two tensors from which pointwise operations compute these; None where there is none, or another."""
    left, seen, products = [weights], set[torch.fx.Node](), set[torch.fx.Node]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        if is_operation(one, "matmul") or is_operation(one, "einsum"):
            if same_sizes(value_of(one), value_of(weights)):
                products.add(one)
        elif is_pointwise(one):
            seen.add(one)
            left += one.all_input_nodes
    return products.pop() if len(products) == 1 else None


def change_between(scores: Any, weights: Any, user: Any) -> tuple[Any, str] | None:
    """A tensor that expands to the shape of scores or None, and text that computes weights of both, which ``user`` alone uses.

    The text has statements, of which the last is an expression, on a score `x` and the tensor's element `m`; empty where weights are
    the scores. None where something else uses one of them, or operations are not known.
    """
    if scores is weights:
        return (None, "") if [*scores.users] == [user] and not is_written_between(scores, user) else None
    between = [scores]
    for one in scores.graph.nodes:
        if is_pointwise(one) and any(each in between for each in one.all_input_nodes):
            between.append(one)
            if one is weights:
                break
    alone = all(each is user or each in between for one in between for each in one.users)
    if weights not in between or not alone or is_written_between(scores, user):
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
            or other.device != value_of(scores).device
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
    return (*others, None)[0], "; ".join([*statements, names[weights]]) if statements else ""


def weights_of(node: torch.fx.Node) -> tuple[Any, Any, str] | None:
    """Scores, and as `change_between` what makes of them the weights that ``node`` multiplies with values; None for other products."""
    weights: Any = node.args[0]
    value = value_of(weights)
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.dtype != torch.float32:
        return None
    scores = product_before(weights)
    if scores is None or scores is weights or not is_operation(scores, "matmul"):
        return None
    found = change_between(scores, weights, node)
    return found and (scores, *found)
