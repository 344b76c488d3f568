"""Digests what a module computes: modules with the same digest compute the same row-wise formula, however it is written.

A module's text does not determine this: `x * weight` is one formula whether the weight is an argument, a parameter or part of one of
torch's norms. The agent's library recognizes modules by such formulas (`agent.library.match`). The digest ignores names, numbers and
the identity of tensors, and thus prefers false matches to misses. Modules without a row-wise formula (matrix products, scans) have no
digest; for them, `rl.decontamination` compares texts.
"""

from __future__ import annotations

import hashlib

from agent.library.match.canonical import Formula, NotRowwise, formula_of
from agent.library.match.graph import BadGraph, read_graphs
from agent.library.match.terms import Algebra, Call, Group, Linear, TooLarge


def meaning_of(graphs: bytes) -> str:
    """The digest of a module from the tracing program's output; "" if it has no row-wise formula."""
    try:
        traced = read_graphs(graphs)
        return digest(formula_of(traced.traces[0])) if traced.traces else ""
    except (BadGraph, NotRowwise, TooLarge):
        return ""


def digest(formula: Formula) -> str:
    """Hex digest of a formula, ignoring names and numbers."""
    known: dict[int, str] = {}
    kind = "full" if formula.shape == formula.full_shape else "row"
    return _hash(kind, _form(formula.form, formula.algebra, known))


def _form(form: Linear, algebra: Algebra, known: dict[int, str]) -> str:
    products = []
    for _, product in form:
        atoms = sorted(f"{_atom(number, algebra, known)}^{power:g}" for number, power in product)
        products.append(_hash(*atoms))
    return _hash(*sorted(products))


def _atom(number: int, algebra: Algebra, known: dict[int, str]) -> str:
    """Digest of an atom, memoized: formulas share parts and may be exponentially long when expanded."""
    if number not in known:
        match algebra.atoms[number]:
            case Call(function=function, arguments=arguments):
                known[number] = _hash(function, *(_form(one, algebra, known) for one in arguments))
            case Group(inner=inner):
                known[number] = _hash("sum", _form(inner, algebra, known))
            case _:
                known[number] = "tensor"
    return known[number]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]
