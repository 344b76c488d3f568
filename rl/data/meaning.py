"""What a module computes, as a digest: two modules of the same digest compute the same formula about a row, however it is written.

The text of a module says little about that: `x * weight` with the weight as an argument, or as a parameter, or inside of a norm of
torch's own, is one formula. The agent's library knows modules by such formulas (`agent.library.match`); here they are compared blind to
names, to numbers and to which tensor is which, so that too much is called the same rather than too little. Modules that have no
formula about rows (products of matrices, scans) have no digest; for those there is the likeness of texts (`rl.decontamination`).
"""

from __future__ import annotations

import hashlib

from agent.library.match.canonical import Formula, NotRowwise, formula_of
from agent.library.match.graph import BadGraph, read_graphs
from agent.library.match.terms import Algebra, Call, Group, Linear, TooLarge


def meaning_of(graphs: bytes) -> str:
    """The digest of what the tracing program wrote about a module; "" where it has no formula about rows."""
    try:
        traced = read_graphs(graphs)
        return digest(formula_of(traced.traces[0])) if traced.traces else ""
    except (BadGraph, NotRowwise, TooLarge):
        return ""


def digest(formula: Formula) -> str:
    """Hex digest of a formula, blind to names and numbers."""
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
    """Each atom once: a formula shares its parts, and written out it may be exponentially long."""
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
