"""Finds the library's kernels that compute what a traced module computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.library.catalog import EXEMPLARS, Exemplar
from agent.library.match.canonical import Formula, NotRowwise, formula_of
from agent.library.match.formula import read_formula
from agent.library.match.graph import Traced
from agent.library.match.terms import TooLarge
from agent.library.match.unify import GaveUp, unify


@dataclass(frozen=True)
class Match:
    """A kernel that fits a module.

    Attributes:
        exemplar: the operation.
        tensors: for each tensor role, where the module has it: ("input", "0"), ("parameter", "norm.weight"), ("buffer", ...).
        numbers: for each number role, its value.
        arguments: names of the arguments of the module's forward.
        open_ended: forward takes more arguments than these.
        keeps_dim: of a kernel that gives one number a row, whether the module keeps the reduced dimension.
    """

    exemplar: Exemplar
    tensors: Mapping[str, tuple[str, str]]
    numbers: Mapping[str, float]
    arguments: tuple[str, ...]
    open_ended: bool
    keeps_dim: bool = False


def find_matches(traced: Traced) -> Iterator[Match]:
    """The kernels whose formula is the module's, at every size that was traced.

    Raises:
        NotRowwise: the module has no formula about rows; the message says why.
    """
    try:
        formulas = [formula_of(trace) for trace in traced.traces]
        for exemplar in EXEMPLARS:
            bindings = [_binding(exemplar, formula) for formula in formulas]
            first = bindings[0]
            if first is None or any(other is None or not _equal(first, other) for other in bindings[1:]):
                continue
            shape, full_shape = formulas[0].shape, formulas[0].full_shape
            tensors = {
                role: str(bound).split(" ", 1)
                for role, bound in first.items()
                if not isinstance(bound, float)
            }
            yield Match(
                exemplar,
                {role: (where, name) for role, (where, name) in tensors.items()},
                {role: bound for role, bound in first.items() if isinstance(bound, float)},
                traced.arguments,
                traced.open_ended,
                keeps_dim=len(shape) == len(full_shape),
            )
    except (TooLarge, GaveUp) as error:
        raise NotRowwise(str(error)) from error


def _binding(exemplar: Exemplar, formula: Formula) -> dict[str, str | float] | None:
    if exemplar.output == "full":
        fits = formula.shape == formula.full_shape
    else:
        fits = formula.shape in (formula.full_shape[:-1], (*formula.full_shape[:-1], 1))
    if not fits:
        return None
    pattern = read_formula(exemplar.formula, exemplar.roles, formula.algebra)
    return unify(pattern, formula.form, formula.algebra)


def _equal(one: Mapping[str, str | float], other: Mapping[str, str | float]) -> bool:
    """The same tensors, and numbers that do not depend on sizes."""
    return one.keys() == other.keys() and all(
        math.isclose(value, other[role], rel_tol=1e-9) if isinstance(value, float) else value == other[role]  # type: ignore[arg-type]
        for role, value in one.items()
    )
