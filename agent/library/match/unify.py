"""Finds values for the roles of a pattern that make it equal to a module's formula.

Sums and products have no order, so that candidates are tried with backtracking; formulas have a dozen terms, and a step limit
stops one that was built to take forever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from agent.library.match.terms import ONE, Algebra, Call, Group, Leaf, Linear, Product

STEP_LIMIT = 200_000
Binding = Mapping[str, "str | float"]


class GaveUp(ValueError):
    """The comparison took too many steps."""


def unify(pattern: Linear, form: Linear, algebra: Algebra) -> dict[str, str | float] | None:
    """Roles of `pattern` with the leaf's name or the number that each stands for, or None.

    Both are forms of `algebra`; leaves of the pattern are those whose name holds no space.

    Raises:
        GaveUp: too many combinations.
    """
    return next(_Search(algebra).linear(pattern, form, {}), None)  # type: ignore[return-value]


class _Search:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.steps = 0

    def linear(self, pattern: Linear, form: Linear, bound: Binding) -> Iterator[Binding]:
        """Pairs the terms of two sums."""
        if len(pattern) != len(form):
            return
        if not pattern:
            yield bound
            return
        first, rest = pattern[0], pattern[1:]
        for position, candidate in enumerate(form):
            self._step()
            for found in self._term(first, candidate, bound):
                yield from self.linear(rest, form[:position] + form[position + 1 :], found)

    def _term(
        self, pattern: tuple[float, Product], term: tuple[float, Product], bound: Binding
    ) -> Iterator[Binding]:
        numbers = [f for f in pattern[1] if self._is_number(f[0])]
        product = tuple(f for f in pattern[1] if f not in numbers)
        if numbers:
            (atom, power), *more = numbers
            if more or power != 1.0 or any(self._is_number(number) for number, _ in term[1]):
                return
            leaf = self.algebra.atoms[atom]
            assert isinstance(leaf, Leaf)
            value = term[0] / pattern[0]
            known = bound.get(leaf.name)
            if known is not None and not (
                isinstance(known, float) and math.isclose(known, value, rel_tol=1e-6)
            ):
                return
            bound = {**bound, leaf.name: value}
        elif not math.isclose(pattern[0], term[0], rel_tol=1e-5):
            return
        if (product == ONE) != (term[1] == ONE):
            return
        yield from self._factors(product, term[1], bound)

    def _factors(self, pattern: Product, product: Product, bound: Binding) -> Iterator[Binding]:
        """Pairs the factors of two products."""
        if len(pattern) != len(product):
            return
        if not pattern:
            yield bound
            return
        (atom, power), rest = pattern[0], pattern[1:]
        for position, (candidate, exponent) in enumerate(product):
            self._step()
            if power == exponent:
                for found in self._atom(atom, candidate, bound):
                    yield from self._factors(rest, product[:position] + product[position + 1 :], found)

    def _atom(self, pattern: int, atom: int, bound: Binding) -> Iterator[Binding]:
        self._step()
        a, b = self.algebra.atoms[pattern], self.algebra.atoms[atom]
        if isinstance(a, Leaf) and isinstance(b, Leaf):
            if a.kind == b.kind and bound.get(a.name, b.name) == b.name:
                yield {**bound, a.name: b.name}
        elif isinstance(a, Call) and isinstance(b, Call) and a.function == b.function:
            yield from self._all(a.arguments, b.arguments, bound)
        elif isinstance(a, Group) and isinstance(b, Group):
            yield from self.linear(a.inner, b.inner, bound)

    def _all(self, patterns: Sequence[Linear], forms: Sequence[Linear], bound: Binding) -> Iterator[Binding]:
        if len(patterns) != len(forms):
            return
        if not patterns:
            yield bound
            return
        for found in self.linear(patterns[0], forms[0], bound):
            yield from self._all(patterns[1:], forms[1:], found)

    def _is_number(self, atom: int) -> bool:
        leaf = self.algebra.atoms[atom]
        return isinstance(leaf, Leaf) and leaf.kind == "constant"

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEP_LIMIT:
            raise GaveUp(f"no answer after {STEP_LIMIT} comparisons")
