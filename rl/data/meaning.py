"""Digests what a module computes: modules with the same digest have the same graph of operations, however they are written.

A module's text does not determine this: `x * weight` is one operation whether the weight is an argument, a parameter or part of one
of torch's norms. The digest is that of the graph broken down into core operations, and ignores names, numbers, sizes, the identity
of tensors and the order and grouping of what is added or multiplied; squares are products, quotients are products with an inverse,
and means are sums times a number. It thus prefers false matches to misses. Modules that cannot be traced have no digest; for them,
`rl.decontamination` compares texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from rl.data.graph import Argument, BadGraph, Node, Ref, read_graphs

#: They move data and compute nothing.
_MOVES = frozenset(
    "view reshape _unsafe_view permute transpose t expand clone detach alias unsqueeze squeeze getitem contiguous _to_copy "
    "lift_fresh_copy".split()
)
_COMMUTE = frozenset(("add", "mul", "maximum", "minimum"))
#: Of a number among the factors or terms, whichever it is.
_NUMBER = "number"
#: More terms of one sum or product are not written out: a chain that doubles them would not end.
_MOST_TERMS = 64
_Parts = tuple[str, ...]


def meaning_of(graphs: bytes) -> str:
    """The digest of a module from the tracing program's output; "" if it has none."""
    try:
        trace = read_graphs(graphs).traces[0]
    except BadGraph:
        return ""
    found: list[tuple[str, _Parts]] = []
    for node in trace.nodes:
        parts = [found[ref.node] for ref in _refs((*node.arguments, *node.keywords.values()))]
        found.append(_TENSOR if node.is_leaf or not parts else _computed(node, parts))
    return _digest(found[trace.output]) if found[trace.output] != _TENSOR else ""


_TENSOR = ("tensor", ())


def _computed(node: Node, parts: list[tuple[str, _Parts]]) -> tuple[str, _Parts]:
    """An operation and the digests of what it takes; of sums and products those of all terms."""
    name = node.op.removeprefix("aten.").split(".")[0]
    first, has_number = parts[0], len(parts) < 2
    if name in _MOVES:
        return first
    if name == "mean":
        return _joined("mul", [("sum", (_digest(first),))], has_number=True)
    if name == "pow" and has_number and node.arguments[1:] == (2,):
        return _joined("mul", [first, first], has_number=False)
    if name == "div" and "rounding_mode" not in node.keywords:
        return _joined(
            "mul", [first, *(("reciprocal", (_digest(one),)) for one in parts[1:])], has_number=has_number
        )
    if name in _COMMUTE:
        return _joined(name, parts, has_number=has_number)
    return name, tuple(map(_digest, parts))


def _joined(name: str, parts: list[tuple[str, _Parts]], *, has_number: bool) -> tuple[str, _Parts]:
    if sum(len(one[1]) if one[0] == name else 1 for one in parts) > _MOST_TERMS:
        return name, tuple(sorted(map(_digest, parts)))
    terms = [term for one in parts for term in (one[1] if one[0] == name else (_digest(one),))]
    if has_number or _NUMBER in terms:
        terms = [_NUMBER, *(term for term in terms if term != _NUMBER)]
    return name, tuple(sorted(terms))


def _digest(found: tuple[str, _Parts]) -> str:
    return found[0] if found == _TENSOR else _hash(found[0], *found[1])


def _refs(arguments: tuple[Argument, ...]) -> Iterator[Ref]:
    for one in arguments:
        if isinstance(one, Ref):
            yield one
        elif isinstance(one, tuple):
            yield from _refs(one)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]
