"""The normal form of a formula: a sum of products of powers, the same for every way of writing it.

A formula speaks about one row of a tensor at a time: values are the full tensor, a vector along the row (`col`), one number
per row (`row`), or a number. Reductions run over the row. Normalizing keeps the meaning over the real numbers, not the
rounding; whether a kernel is accurate enough is the referee's question.

    (x - x.mean(-1, keepdim=True)) / torch.sqrt(v + 1e-5)      and      (x + -m) * (v + 1e-5) ** -0.5     become equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

MAX_ATOMS = 20_000
MAX_TERMS = 200


class TooLarge(ValueError):
    """The formula has grown beyond what is worth comparing."""


@dataclass(frozen=True)
class Leaf:
    """A tensor the formula starts from, or in a pattern a number to be found (kind "constant")."""

    name: str
    kind: str


@dataclass(frozen=True)
class Call:
    """A function of linear forms: exp, log, tanh, sigmoid, erf, relu, mean, max, softmax, or an unknown one."""

    function: str
    arguments: tuple[Linear, ...]


@dataclass(frozen=True)
class Group:
    """A sum used as a factor. Its first coefficient is 1, the rest of the scale is outside."""

    inner: Linear


Atom: TypeAlias = "Leaf | Call | Group"
#: Atoms are interned: a product names them by number, so that comparing and hashing never walk a shared subformula twice.
Product: TypeAlias = "tuple[tuple[int, float], ...]"  # atoms with exponents, sorted
Linear: TypeAlias = "tuple[tuple[float, Product], ...]"  # coefficients with products, sorted; () is zero
ONE: Product = ()
ROW_REDUCTIONS = ("mean", "max")


def constant(value: float) -> Linear:
    """A number as a linear form."""
    return ((float(value), ONE),) if value else ()


def number_of(form: Linear) -> float | None:
    """The value of a form that is just a number, or None."""
    if not form:
        return 0.0
    return form[0][0] if len(form) == 1 and form[0][1] == ONE else None


class Algebra:
    """Builds normal forms for rows of `row_length` elements. Forms of different algebras cannot be compared.

    Args:
        row_length: how many elements a mean runs over, so that sum(x) / n is seen to be mean(x).
    """

    def __init__(self, row_length: int) -> None:
        self.row_length = max(row_length, 1)
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._kinds: list[str] = []
        self._shapes: list[bytes] = []  # digests of the structure, blind to names and coefficients

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def leaf(self, name: str, kind: str) -> Linear:
        """A tensor."""
        return self._single(Leaf(name, kind))

    def call(self, function: str, *arguments: Linear) -> Linear:
        """A function of forms that has no arithmetic of its own."""
        return self._single(Call(function, arguments))

    def add(self, *forms: Linear) -> Linear:
        """Their sum."""
        coefficients: dict[Product, float] = {}
        for form in forms:
            for coefficient, product in form:
                coefficients[product] = coefficients.get(product, 0.0) + coefficient
        return self._with_variance(self._sorted((c, p) for p, c in coefficients.items() if abs(c) > 1e-12))

    def scale(self, form: Linear, factor: float) -> Linear:
        """`factor * form`."""
        return self._sorted((c * factor, p) for c, p in form) if factor else ()

    def multiply(self, left: Linear, right: Linear) -> Linear:
        """Their product; sums are kept as factors, not multiplied out."""
        for one, other in ((left, right), (right, left)):
            value = number_of(one)
            if value is not None:
                return self.scale(other, value)
        a, p = self._as_product(left)
        b, q = self._as_product(right)
        exponents: dict[int, float] = {}
        for atom, exponent in (*p, *q):
            exponents[atom] = exponents.get(atom, 0.0) + exponent
        return self._simplified(a * b, exponents)

    def power(self, base: Linear, exponent: float) -> Linear:
        """`base ** exponent`. Powers of powers are merged only where that is the same function."""
        if exponent in (0.0, 1.0):
            return base if exponent else constant(1.0)
        whole = exponent == int(exponent)
        value = number_of(base)
        if value is not None and (value > 0 or (whole and value != 0)):
            return constant(value**exponent)
        if value is not None:
            return self.call(f"power {exponent}", base)
        if exponent == -1.0 and (argument := self._one_plus_exp(base)) is not None:
            return self.call("sigmoid", self.scale(argument, -1.0))
        coefficient, product = self._as_product(base)
        if not whole and (coefficient < 0 or len(product) != 1 or product[0][1] != 1.0):
            return self.call(f"power {exponent}", base)  # sqrt(x * x) is not x
        return self._simplified(coefficient**exponent, {atom: power * exponent for atom, power in product})

    # -- reductions over the row -------------------------------------------------------------------------------------

    def mean(self, form: Linear) -> Linear:
        """Mean over the row; what is the same along the row goes in front of it."""
        total: Linear = ()
        for coefficient, product in form:
            steady = tuple(factor for factor in product if self._kinds[factor[0]] in ("row", "number"))
            varying = tuple(factor for factor in product if factor not in steady)
            part: Linear = ((coefficient, steady),)
            if varying:
                part = self.multiply(part, self.call("mean", ((1.0, varying),)))
            total = self.add(total, part)
        return total

    def sum(self, form: Linear) -> Linear:
        """Sum over the row."""
        return self.scale(self.mean(form), float(self.row_length))

    def variance(self, form: Linear, correction: float = 0.0) -> Linear:
        """Mean square deviation, times n / (n - correction)."""
        deviation = self.add(form, self.scale(self.mean(form), -1.0))
        square = self.mean(self.power(deviation, 2.0))
        return self.scale(square, self.row_length / max(self.row_length - correction, 1e-9))

    def softmax(self, form: Linear) -> Linear:
        """exp(form) / sum(exp(form)); what is the same along the row does not matter."""
        return self.call(
            "softmax", tuple((c, p) for c, p in form if self.product_kind(p) not in ("row", "number"))
        )

    # -- kinds -----------------------------------------------------------------------------------------------------

    def product_kind(self, product: Product) -> str:
        """Along what a product varies: "number", "col", "row" or "full"."""
        return _joined(self._kinds[atom] for atom, _ in product)

    def form_kind(self, form: Linear) -> str:
        """The same for a form."""
        return _joined(self.product_kind(product) for _, product in form)

    # -- normal form -------------------------------------------------------------------------------------------------

    def _single(self, atom: Atom) -> Linear:
        return ((1.0, ((self._number(atom), 1.0),)),)

    def _number(self, atom: Atom) -> int:
        number = self._numbers.get(atom)
        if number is None:
            if len(self.atoms) >= MAX_ATOMS:
                raise TooLarge(f"the formula has more than {MAX_ATOMS} parts")
            number = self._numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
            if isinstance(atom, Leaf):
                kind, words = ("number" if atom.kind == "constant" else atom.kind), atom.kind
            else:
                forms = atom.arguments if isinstance(atom, Call) else (atom.inner,)
                words = atom.function if isinstance(atom, Call) else "+"
                kind = "row" if words in ROW_REDUCTIONS else _joined(self.form_kind(form) for form in forms)
                words += repr([[self._structure(product) for _, product in form] for form in forms])
            self._kinds.append(kind)
            self._shapes.append(hashlib.blake2b(words.encode(), digest_size=12).digest())
        return number

    def _structure(self, product: Product) -> tuple[object, ...]:
        """What orders products: numbers last, those to be found too, so that a pattern's eps does not change what leads."""
        if self.product_kind(product) == "number":
            return (1,)
        return (0, tuple(sorted((self._shapes[atom], power) for atom, power in product)))

    def _sorted(self, items: Iterable[tuple[float, Product]]) -> Linear:
        listed = sorted(items, key=lambda item: (self._structure(item[1]), item[0], item[1]))
        if len(listed) > MAX_TERMS:
            raise TooLarge(f"a sum has more than {MAX_TERMS} terms")
        return tuple(listed)

    def _as_product(self, form: Linear) -> tuple[float, Product]:
        if len(form) == 1:
            return form[0]
        lead = form[0][0]
        return lead, ((self._number(Group(self._sorted((c / lead, p) for c, p in form))), 1.0),)

    def _simplified(self, coefficient: float, exponents: dict[int, float]) -> Linear:
        """A product as a form; exp(a) / mean(exp(a)) is seen as a softmax, and a lone sum is a sum again."""
        for number in list(exponents):
            atom = self.atoms[number]
            if not (isinstance(atom, Call) and atom.function == "exp" and exponents[number] == 1.0):
                continue
            divisor = self._numbers.get(Call("mean", (((1.0, ((number, 1.0),)),),)))
            if divisor is not None and exponents.get(divisor) == -1.0:
                del exponents[number], exponents[divisor]
                found = self.softmax(atom.arguments[0])[0][1][0][0]
                exponents[found] = exponents.get(found, 0.0) + 1.0
                coefficient *= self.row_length
        factors = [(number, power) for number, power in exponents.items() if abs(power) > 1e-12]
        if len(factors) == 1 and factors[0][1] == 1.0:
            lone = self.atoms[factors[0][0]]
            if isinstance(lone, Group):
                return self.scale(lone.inner, coefficient)
        return ((coefficient, tuple(sorted(factors, key=lambda f: (self._shapes[f[0]], f[1], f[0])))),)

    def _one_plus_exp(self, form: Linear) -> Linear | None:
        """The argument `a` of a form 1 + exp(a)."""
        if len(form) == 2 and all(math.isclose(c, 1.0) for c, _ in form) and any(p == ONE for _, p in form):
            product = next(p for _, p in form if p != ONE)
            if len(product) == 1 and product[0][1] == 1.0:
                atom = self.atoms[product[0][0]]
                if isinstance(atom, Call) and atom.function == "exp":
                    return atom.arguments[0]
        return None

    def _with_variance(self, form: Linear) -> Linear:
        """mean(x * x) - mean(x) * mean(x) is a variance, whatever rounding does to it."""
        for coefficient, product in form:
            if coefficient <= 0 or len(product) != 1 or product[0][1] != 1.0:
                continue
            atom = self.atoms[product[0][0]]
            if not (isinstance(atom, Call) and atom.function == "mean"):
                continue
            square = atom.arguments[0][0][1]
            if any(power != 2.0 for _, power in square):
                continue
            root: Linear = ((1.0, tuple((factor, 1.0) for factor, _ in square)),)
            taken = self.power(self.mean(root), 2.0)[0][1]
            if any(p == taken and math.isclose(c, -coefficient) for c, p in form):
                rest = tuple((c, p) for c, p in form if p not in (product, taken))
                return self.add(self.scale(self.variance(root), coefficient), rest)
        return form


def _joined(kinds: Iterable[str]) -> str:
    """The kind of a combination: a row value with a col value fills the tensor."""
    found = set(kinds)
    if "full" in found or {"row", "col"} <= found:
        return "full"
    return next((kind for kind in ("row", "col") if kind in found), "number")
