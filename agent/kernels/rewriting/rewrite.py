"""Rewrites a captured graph: operations that the library computes become calls of it, which the compiler leaves as they are."""

from __future__ import annotations

import torch

from agent.kernels.rewriting.bags import bag_sums
from agent.kernels.rewriting.contractions import contraction
from agent.kernels.rewriting.decoding import decoding
from agent.kernels.rewriting.epilogues import joins, pointwise_after
from agent.kernels.rewriting.exchanges import exchanged
from agent.kernels.rewriting.gathers import gathered_product
from agent.kernels.rewriting.heads import shared_heads
from agent.kernels.rewriting.inplace import without_writes
from agent.kernels.rewriting.joined import joined_convolutions
from agent.kernels.rewriting.lists import sums_of_many
from agent.kernels.rewriting.matches import made_of
from agent.kernels.rewriting.means import merged
from agent.kernels.rewriting.nodes import add_call, arguments_of, aten, hint, replace, same_sizes
from agent.kernels.rewriting.norms import fixed_norm, mean_of_norm, steady_norm
from agent.kernels.rewriting.orders import order_statistic
from agent.kernels.rewriting.packed import packed_linear
from agent.kernels.rewriting.reductions import reduced
from agent.kernels.rewriting.scans import doubled_scans
from agent.kernels.rewriting.scatters import scattering
from agent.kernels.rewriting.taps import short_convolution


def rewrite(graph: torch.fx.GraphModule) -> int:
    """Replace the operations in place; returns how many were."""
    graph.graph.eliminate_dead_code()
    without_writes(graph.graph)
    changed = doubled_scans(graph.graph)
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        rules = (
            merged, reduced, steady_norm, fixed_norm, mean_of_norm, bag_sums, scattering, decoding, shared_heads, packed_linear, gathered_product, short_convolution,
            sums_of_many,
        )  # fmt: skip
        better = next((new for rule in rules if (new := rule(graph.graph, node)) is not None), None)
        if better is not None:
            was, now = node.meta["val"], better.meta["val"]
            # A rule may not have foreseen an autocast, or operands that are broadcast.
            if isinstance(was, torch.Tensor) and (was.dtype != now.dtype or not same_sizes(was, now)):
                continue
            replace(graph.graph, node, better)
            changed += 1
        else:
            changed += exchanged(graph.graph, node) or order_statistic(graph.graph, node)
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if (found := contraction(graph.graph, node)) is not None:  # no part of an attention
            replace(graph.graph, *found)
            changed += 1
        elif (joined := joined_convolutions(graph.graph, node)) is not None:
            replace(graph.graph, node, joined)
            changed += 1
    graph.graph.eliminate_dead_code()
    for node in list(graph.graph.nodes):
        made = made_of(node) if node.op == "call_function" else None
        if made is None:
            continue
        name, args, bias = made
        if name == "convolution" and args[7] == 1:
            last, after, operands = pointwise_after(node)
            if after and not joins(last):
                # Before the compiler reads the output once more.
                args[8:], bias, node = [arguments_of(node)["bias"], after, *operands], None, last
        with graph.graph.inserting_before(node):
            new = graph.graph.call_function(getattr(torch.ops.kernelwright, name).default, tuple(args))
            if bias is not None:
                # Added apart, the bias joins whatever pointwise operations follow.
                shape = [-1] + [1] * (node.meta["val"].dim() - 2)
                new.meta["val"] = node.meta["val"]
                new = graph.graph.call_function(
                    aten.add.Tensor, (new, graph.graph.call_function(aten.view.default, (bias, shape)))
                )
        new.meta["val"] = value = node.meta["val"]
        if name == "attention":
            # The heads of a place lie side by side, as a projection wants them. Users may view another order, which torch's result has
            # where queries have it, and what is written out.
            new.meta["val"] = value.transpose(1, 2).contiguous().transpose(1, 2)
            order = sorted(range(4), key=lambda axis: -hint(value.stride(axis)))
            if order != [0, 2, 1, 3]:
                with graph.graph.inserting_before(node):
                    new = add_call(graph.graph, aten.permute.default, new, order)
                    new = add_call(graph.graph, aten.contiguous.default, new)
                    new = add_call(
                        graph.graph, aten.permute.default, new, [order.index(axis) for axis in range(4)]
                    )
        replace(graph.graph, node, new)
        changed += 1
    graph.recompile()
    return changed
