"""Digests what a module computes: modules with the same digest have the same graph of operations, however they are written.

A module's text does not determine this: `x * weight` is one operation whether the weight is an argument, a parameter or part of one
of torch's norms. The digest is that of the graph broken down into core operations, and ignores names, numbers, sizes, the identity
of tensors and the order of what is added or multiplied; it thus prefers false matches to misses. Modules that cannot be traced have no digest; for them, `rl.decontamination`
compares texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from rl.data.graph import Argument, BadGraph, Ref, read_graphs

#: They move data and compute nothing.
_MOVES = frozenset(
    "view reshape _unsafe_view permute transpose t expand clone detach alias unsqueeze squeeze getitem contiguous _to_copy "
    "lift_fresh_copy".split()
)
_COMMUTE = frozenset(("add", "mul", "maximum", "minimum"))


def meaning_of(graphs: bytes) -> str:
    """The digest of a module from the tracing program's output; "" if it has none."""
    try:
        trace = read_graphs(graphs).traces[0]
    except BadGraph:
        return ""
    digests: list[str] = []
    for node in trace.nodes:
        name = node.op.removeprefix("aten.").split(".")[0]
        parts = [digests[ref.node] for ref in _refs((*node.arguments, *node.keywords.values()))]
        if node.is_leaf or not parts:
            digests.append("tensor")
        elif name in _MOVES:
            digests.append(parts[0])
        else:
            digests.append(_hash(name, *(sorted(parts) if name in _COMMUTE else parts)))
    return digests[trace.output] if digests[trace.output] != "tensor" else ""


def _refs(arguments: tuple[Argument, ...]) -> Iterator[Ref]:
    for one in arguments:
        if isinstance(one, Ref):
            yield one
        elif isinstance(one, tuple):
            yield from _refs(one)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]
