"""Products with weights of few bits: a kernel unpacks whole numbers where it needs them, and scales their sums.

Whole numbers up to 2048 are exact in float16, so they need no second part, and a scale for a row and group of whole steps of the sum
multiplies the sum. Other packed weights, such as those looked up in a table, stay with the compiler: computed element by element in
front of a product, they were slower than written to memory once.
"""

from __future__ import annotations

from typing import Any

import torch

from agent.kernels.rewriting.elements import Element
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    only_used,
    operation,
    value_of,
    writes,
)

#: How much smaller than float32 weights tensors are together at least from which they are computed.
LEAST_PACKED = 2
#: Places that a kernel computes together, see `agent.kernels.gpu.products`.
STEP_K = 64
#: Neighbors side by side, by their number: joined along a new last axis, of which the kernel makes one with the last but one.
_JOINED = {1: "{}", 2: "tl.join({}, {})", 4: "tl.join(tl.join({0}, {2}), tl.join({1}, {3}))"}


def packed_linear(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """What gives the product of a node with packed weights, or None for other nodes."""
    name = operation(node)
    if name not in ("linear", "mm", "matmul") or any(writes(one) for one in graph.nodes):
        return None
    given = arguments_of(node)
    x: Any
    weight: Any
    x, weight = (given["input"], given["weight"]) if name == "linear" else tuple(node.args[:2])
    to, w = value_of(x), value_of(only_used(weight))
    if (
        not all(isinstance(one, torch.Tensor) and one.dtype == torch.float32 for one in (to, w))
        or weight.op == "placeholder" or w.dim() != 2 or to.dim() < (1 if name == "linear" else 2)
        or not all(isinstance(size, int) and size > 0 for size in w.shape) or w.numel() >= 1 << 31
    ):  # fmt: skip
        return None
    rows, ks = w.shape if name == "linear" else w.shape[::-1]
    parts = _stacked_parts(weight)
    element = Element(parts, STEP_K)
    results = [
        element.of(weight, ["row", f"k{part}"] if name == "linear" else [f"k{part}", "row"])
        for part in range(parts)
    ]
    found = [element.scaled.get(str(result)) for result in results]
    numbers, scales = [one and one[0] for one in found], {one and one[1] for one in found}
    sources = list(element.sources)
    held_bytes = sum(value_of(one).numel() * value_of(one).element_size() for one in sources)
    if (
        None in scales or len(scales) > 1 or not element.differ(numbers) or ks % parts
        or LEAST_PACKED * held_bytes > 4 * w.numel()
    ):  # fmt: skip
        return None
    with graph.inserting_before(node):
        flat = add_call(graph, aten.reshape.default, x, [-1, ks])
        text = "; ".join([*element.statements, f"{_JOINED[parts].format(*numbers)}, {scales.pop()}"])
        out = add_call(graph, torch.ops.kernelwright.packed.default, flat, sources, rows, text, parts)
        out = add_call(graph, aten.reshape.default, out, [*to.shape[:-1], rows])
        if given.get("bias") is not None:
            out = add_call(graph, aten.add.Tensor, out, given["bias"])
        return out


def _stacked_parts(weight: torch.fx.Node) -> int:
    """Of how many neighbors an element is one that lie in memory together: two where a byte has two, or four; else 1."""
    seen, left, counts = set[torch.fx.Node](), [weight], {1}
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
            if operation(node) == "stack":
                counts.add(len(arguments_of(node)["tensors"]))
    return max(counts) if max(counts) in _JOINED else 1
