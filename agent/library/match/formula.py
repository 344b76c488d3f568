"""Formulas as the library writes them: `relu((x - mean(x)) * rsqrt(var(x) + eps) * weight + bias) + residual`.

Names are roles: tensors as large as the input, vectors along the row, one number per row, or numbers to be found. The text is
ours, never a user's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from agent.library.match.operations import gelu
from agent.library.match.terms import Algebra, Linear, constant, number_of

_FUNCTIONS: dict[str, Callable[[Algebra, Linear], Linear]] = {
    "mean": Algebra.mean,
    "sum": Algebra.sum,
    "var": Algebra.variance,
    "softmax": Algebra.softmax,
    "square": lambda algebra, form: algebra.power(form, 2.0),
    "sqrt": lambda algebra, form: algebra.power(form, 0.5),
    "rsqrt": lambda algebra, form: algebra.power(form, -0.5),
    "gelu_tanh": lambda algebra, form: gelu(algebra, form, tanh=True),
    "gelu": lambda algebra, form: gelu(algebra, form, tanh=False),
    "silu": lambda algebra, form: algebra.multiply(form, algebra.call("sigmoid", form)),
}
_PLAIN = ("relu", "sigmoid", "tanh", "exp", "log", "erf", "max")


def read_formula(text: str, roles: Mapping[str, str], algebra: Algebra) -> Linear:
    """The normal form of a formula in `algebra`.

    Args:
        text: the formula.
        roles: kind of each name: "full", "col", "row" or "constant".
        algebra: where the form lives.

    Raises:
        ValueError: the text uses a name or a construct that formulas do not have.
    """

    def build(node: ast.expr) -> Linear:
        match node:
            case ast.Constant(value=int() | float() as value):
                return constant(value)
            case ast.Name(id=name) if name in roles:
                return algebra.leaf(name, roles[name])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return algebra.scale(build(operand), -1.0)
            case ast.BinOp(left=left, op=operator, right=right):
                a, b = build(left), build(right)
                match operator:
                    case ast.Add():
                        return algebra.add(a, b)
                    case ast.Sub():
                        return algebra.add(a, algebra.scale(b, -1.0))
                    case ast.Mult():
                        return algebra.multiply(a, b)
                    case ast.Div():
                        return algebra.multiply(a, algebra.power(b, -1.0))
                    case ast.Pow() if (exponent := number_of(b)) is not None:
                        return algebra.power(a, exponent)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
                if name in _FUNCTIONS:
                    return _FUNCTIONS[name](algebra, build(argument))
                if name in _PLAIN:
                    return algebra.call(name, build(argument))
        raise ValueError(f"a formula cannot hold {ast.unparse(node)!r}")

    return build(ast.parse(text, mode="eval").body)
