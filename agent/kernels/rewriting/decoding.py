"""Attention of few queries over many keys, as in decoding: torch's call, or written out with what changes scores before a softmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.elements import Element
from agent.kernels.rewriting.heads import repeated_once
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    hint,
    is_operation,
    is_written_between,
    laid_out,
    only_used,
    operation,
    same_sizes,
    scaled,
    value_of,
    writes,
)
from agent.kernels.rewriting.weights import change_between, product_before

#: Queries that share a head of keys, see `agent.kernels.gpu.streamed`.
MOST_STREAMED = 16
#: Elements of all keys; with fewer, reading them is a matter of launches.
LEAST_KEYS = 1 << 22
#: Tensors in which keys may lie.
MOST_PIECES = 4
#: Parameters of functions that change scores and that compute keys or values.
CHANGE, ELEMENT = "x, m", "batch, head, row, j, there, row_there, p0, p1, p2, p3"
#: Of `torch.matmul`, as an equation of `torch.einsum`.
MATMUL = "bhqd,bhdk->bhqk"


def decoding(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives the result of an attention of few queries, or None for other nodes."""
    name = operation(node)
    if name == "scaled_dot_product_attention":
        given = arguments_of(node)
        mask, scale = given["attn_mask"], given["scale"]
        kind = None if mask is None else value_of(mask).dtype
        if given["is_causal"] or given["dropout_p"] or (mask is not None and value_of(mask).dim() > 4):
            return None
        if kind not in (None, torch.bool, torch.float32):
            return None
        is_bias = kind == torch.float32
        text, bias, excluded = ("x + m", mask, None) if is_bias else ("", None, mask)
        return _attended(
            graph, node, given["query"], given["key"], given["value"], excluded, bias, scale, text
        )
    if name not in ("matmul", "einsum"):
        return None
    found = _written_out(node)
    if found is None:
        return None
    (q, k, v), (excluded, bias, scale, text), order = found
    out = _attended(graph, node, q, k, v, excluded, bias, scale, text)
    if out is None or order == [0, 1, 2, 3]:
        for one in (q, k, v):
            if out is None and not one.users:
                graph.erase_node(one)
        return out
    with graph.inserting_before(node):
        return add_call(graph, aten.permute.default, out, order)


def _attended(
    graph: torch.fx.Graph, node: Any, q: Any, k: Any, v: Any, excluded: Any, bias: Any, scale: Any, text: str
) -> torch.fx.Node | None:
    """The library's operation for q (batch, heads, queries, dims), k and v (batch, heads, or those shared, keys, dims)."""
    is_call, value = operation(node) == "scaled_dot_product_attention", value_of(node)
    if is_call and not arguments_of(node)["enable_gqa"]:
        k, v = repeated_once(k, node), repeated_once(v, node)
    values = [value_of(one) for one in (q, k, v)]
    # Under autocast a call of float32 tensors gives another type; with one head of queries and several of keys, more heads.
    if (
        value.dtype != torch.float32
        or (is_call and not same_sizes(value, values[0]))
        or not all(
            isinstance(one, torch.Tensor) and one.dim() == 4 and one.dtype == torch.float32 for one in values
        )
    ):
        return None
    (batch, heads, queries, dims), few = values[0].shape, values[1].shape
    if (
        not all(isinstance(size, int) and size for size in (heads, few[1], dims)) or heads % few[1] or (str(batch), dims) != (str(few[0]), few[3])
        or not same_sizes(*values[1:]) or (not is_call and few[1] != heads) or not 64 <= dims <= 256 or dims % 8
        or heads // few[1] * hint(queries) > MOST_STREAMED or math.prod(map(hint, few)) < LEAST_KEYS
    ):  # fmt: skip
        return None
    if excluded is not None and is_call:  # torch's mask says which keys count
        with graph.inserting_before(node):
            excluded = add_call(graph, aten.logical_not.default, excluded)
    keys, their_values = _pieces(k, node), _pieces(v, node)
    if len(keys) != len(their_values) or not all(
        same_sizes(value_of(x), value_of(y)) for x, y in zip(keys, their_values, strict=True)
    ):
        keys, their_values = [k], [v]
    with graph.inserting_before(node):
        target = torch.ops.kernelwright.decoding.default
        of_key, of_value, sizes = "", "", list[Any]()
        made, made_values = _computed(graph, k), _computed(graph, v)
        if made is not None and made_values is not None:
            (keys, of_key), (their_values, of_value), sizes = made, made_values, list(few)
        text = f"{CHANGE}: {text}" if text else ""
        out = add_call(
            graph,
            target,
            q,
            keys,
            their_values,
            excluded,
            bias,
            scale,
            is_call,
            text,
            of_key,
            of_value,
            sizes,
        )
        return laid_out(graph, out, value) if is_call else out


def _computed(graph: torch.fx.Graph, wanted: Any) -> tuple[list[Any], str] | None:
    """From which tensors a kernel computes keys or values that would be written to memory for it, and how; None where it cannot.

    Such are int8 caches with scales, and pages that a table picks.
    """
    value = value_of(wanted)
    if (
        len(wanted.users) > 1
        or not all(isinstance(size, int) for size in value.shape)
        or any(map(writes, graph.nodes))
    ):
        return None
    element = Element(1, None)
    result = element.of(wanted, ["batch", "head", "row", "k0"])
    if result is None or not element.differ([result]) or not element.computes:
        return None
    if element.within:
        result = f"tl.where({' & '.join(element.within)}, {result}, float('nan'))".replace("'", '"')
    return list(element.sources), f"{ELEMENT}: {'; '.join([*element.statements, result])}"


def _pieces(joined: Any, node: Any) -> list[Any]:
    """The tensors of which keys or values are a copy, in order."""
    if not is_operation(joined, "cat") or is_written_between(joined, node):
        return [joined]
    given = arguments_of(joined)
    pieces = given["tensors"]
    values = [value_of(one) for one in pieces]
    fits = len(pieces) <= MOST_PIECES and given["dim"] in (2, -2)
    return (
        list(pieces)
        if fits and all(one.dim() == 4 and one.dtype == torch.float32 for one in values)
        else [joined]
    )


def _written_out(
    node: torch.fx.Node,
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any, str], list[int]] | None:
    """Of softmax(changed scores) v: q, k and v; excluded keys, a bias, a scale and the change; and the axes of the result."""
    given = _operands(node)
    if given is None:
        return None
    weights, v, (of_weights, of_values, of_out) = given
    weights = _as_given(only_used(weights))
    if (
        not is_operation(weights, "softmax")
        or weights.args[1] not in (-1, 3)
        or arguments_of(weights)["dtype"] is not None
    ):
        return None
    last, user, excluded = only_used(weights.args[0]), weights, None
    if is_operation(last, "masked_fill") and last.args[2] == -math.inf and value_of(last.args[1]).dim() <= 4:
        excluded, user = last.args[1], last
        last = only_used(last.args[0])
    product = product_before(last) if last is not None else None
    inner = _operands(product) if product is not None else None
    # A mask may have more sizes than the scores.
    if (
        inner is None
        or is_written_between(product, node)
        or not same_sizes(value_of(product), value_of(weights))
    ):
        return None
    q, k, (of_q, of_k, of_scores) = inner
    summed = [axis for axis in of_q if axis in of_k and axis not in of_scores]
    batch, head, query, key = list(of_scores)
    if (
        len(summed) != 1 or sorted(of_q) != sorted([batch, head, query, *summed]) or sorted(of_k) != sorted([batch, head, key, *summed])
        or of_weights[3] not in of_values or of_weights[3] in of_out or sorted(of_out) != sorted({*of_weights[:3], *of_values} - {of_weights[3]})
        or not {*of_weights[:2]} < {*of_values} or of_weights[2] in of_values
    ):  # fmt: skip
        return None
    scores, scale = product, 1.0
    while scores is not last and (later := only_used(scores)) is not None:
        [user_of] = later.users
        if (more := scaled(scale, user_of)) is not None:
            scale = more
        elif operation(user_of) != "to" or value_of(user_of).dtype != torch.float32:
            break
        scores = user_of
    found = change_between(scores, last, user)
    if found is None:
        return None
    [dims] = [axis for axis in of_values if axis not in of_weights]
    with node.graph.inserting_before(node):
        q = _ordered(node.graph, q, of_q, [batch, head, query, *summed])
        k = _ordered(node.graph, k, of_k, [batch, head, key, *summed])
        v = _ordered(node.graph, v, of_values, [*of_weights[:2], of_weights[3], dims])
    order = [[*of_weights[:3], dims].index(axis) for axis in of_out]
    return (q, k, v), (excluded, found[0], scale, found[1]), order


def _as_given(weights: Any) -> Any:
    """Weights before what leaves them as they are: a cast to their own type, dropout out of training."""
    while (is_operation(weights, "to") and value_of(weights).dtype == value_of(weights.args[0]).dtype) or (
        is_operation(weights, "dropout") and weights.args[2] is False
    ):
        weights = only_used(weights.args[0])
    return weights


def _operands(node: Any) -> tuple[Any, Any, list[str]] | None:
    """A product's operands of four axes, and the letters of their axes and the result's."""
    pair = node.args[1] if operation(node) == "einsum" else node.args[:2]
    equation = str(node.args[0]).replace(" ", "") if operation(node) == "einsum" else MATMUL
    letters = equation.replace("->", ",").split(",")
    fits = isinstance(pair, list | tuple) and len(pair) == 2 and len(letters) == 3
    if not fits or not all(len(one) == len({*one}) == 4 and one.isalpha() for one in letters):
        return None
    values = [value_of(one) for one in (*pair, node)]
    if not all(
        isinstance(one, torch.Tensor) and one.dim() == 4 and one.dtype == torch.float32 for one in values
    ):
        return None
    return pair[0], pair[1], letters


def _ordered(graph: torch.fx.Graph, node: Any, axes: str, wanted: list[str]) -> Any:
    """A tensor with its axes in the order that is wanted."""
    if is_operation(node, "transpose"):
        one, two = (axis % 4 for axis in node.args[1:])
        letters = list(axes)
        letters[one], letters[two] = letters[two], letters[one]
        if letters == wanted:
            return node.args[0]
    order = [axes.index(axis) for axis in wanted]
    return node if order == [0, 1, 2, 3] else add_call(graph, aten.permute.default, node, order)
