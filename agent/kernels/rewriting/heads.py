"""Attention of a few queries whose heads share keys: queries of one key head become rows of one product, so that no key is repeated."""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    is_operation,
    is_written_between,
    operation,
    value_of,
)

#: Rows of a key head's product: with more, torch's fused attention is faster.
MOST_ROWS = 64


def shared_heads(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives the result of an attention with shared keys, or None for other nodes."""
    if operation(node) != "scaled_dot_product_attention":
        return None
    given = arguments_of(node)
    key, value = given["key"], given["value"]
    if not given["enable_gqa"]:
        shared = repeated_once(key, node), repeated_once(value, node)
        if shared[0] is key or shared[1] is value:
            return None
        key, value = shared
    q, k, v, mask = (value_of(one) for one in (given["query"], key, value, given["attn_mask"]))
    if (
        given["is_causal"]
        or given["dropout_p"]
        or not all(one.dim() == 4 and one.dtype == torch.float32 for one in (q, k, v))
    ):
        return None
    batch, heads, queries, dims = q.shape
    key_heads, keys = k.shape[1:3]
    if (
        not all(isinstance(one, int) and one for one in (heads, key_heads, queries))
        or heads % key_heads
        or v.shape[1] != key_heads
    ):
        return None
    group = heads // key_heads
    if group == 1 or group * queries > MOST_ROWS or not batch == k.shape[0] == v.shape[0]:
        return None
    if mask is not None and mask.dim() > 2:
        over = [1] * (4 - mask.dim()) + list(mask.shape[:-2])
        if over[0] not in (1, batch) or over[1] not in (1, heads):
            return None
    scale = dims**-0.5 if given["scale"] is None else given["scale"]
    with graph.inserting_before(node):
        rows = add_call(
            graph, aten.reshape.default, given["query"], [batch, key_heads, group * queries, dims]
        )
        scores = add_call(graph, aten.matmul.default, rows, add_call(graph, aten.transpose.int, key, 2, 3))
        scores = add_call(graph, aten.mul.Tensor, scores, scale)
        scores = add_call(graph, aten.reshape.default, scores, [batch, key_heads, group, queries, keys])
        if mask is not None:
            given_mask = given["attn_mask"]
            if mask.dim() == 3:
                given_mask = add_call(graph, aten.unsqueeze.default, given_mask, 0)
            if mask.dim() > 2 and over[1] == heads:
                sizes = [over[0], key_heads, group, *mask.shape[-2:]]
                given_mask = add_call(graph, aten.reshape.default, given_mask, sizes)
            elif mask.dim() > 2:
                given_mask = add_call(graph, aten.unsqueeze.default, given_mask, 2)
            if mask.dtype == torch.bool:
                given_mask = add_call(graph, aten.where.Scalar, given_mask, 0.0, float("-inf"))
            scores = add_call(graph, aten.add.Tensor, scores, given_mask)
        weights = add_call(graph, aten._safe_softmax.default, scores, -1)
        weights = add_call(graph, aten.reshape.default, weights, [batch, key_heads, group * queries, keys])
        out = add_call(graph, aten.matmul.default, weights, value)
        return add_call(graph, aten.reshape.default, out, [batch, heads, queries, v.shape[3]])


def repeated_once(node: Any, user: Any) -> Any:
    """The keys or values of which these are a copy with heads repeated, if they are, and no operation writes before ``user``."""
    source = None if is_written_between(node, user) else _shared(node)
    return node if source is None else source


def _shared(node: Any) -> Any:
    """The keys or values (batch, key heads, keys, dims) of which each head is repeated for its queries' heads; else None."""
    if is_operation(node, "repeat_interleave"):
        given = arguments_of(node)
        is_fixed = isinstance(given.get("repeats"), int) and given.get("dim") in (1, -3)
        return (
            given["self"] if is_fixed and value_of(given["self"]).dim() == value_of(node).dim() == 4 else None
        )
    expanded: Any = node.args[0] if operation(node) in ("reshape", "view", "flatten") else None
    apart: Any = expanded.args[0] if is_operation(expanded, "expand") else None
    if not is_operation(apart, "unsqueeze") or apart.args[1] not in (2, -3):
        return None
    source, wide, repeated = (value_of(one) for one in (apart.args[0], expanded, node))
    if source.dim() != 4:
        return None
    _, heads, keys, dims = source.shape
    fits = repeated.dim() == 4 and wide.dim() == 5 and repeated.shape[1] == heads * wide.shape[2]
    return apart.args[0] if fits and tuple(repeated.shape[2:]) == (keys, dims) else None
