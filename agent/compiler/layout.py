"""Decides from printed sizes and strides whether a tensor is contiguous or a transpose.

Sizes are products of symbols, printed in whatever order the compiler chose. Instead of algebra on text, both sides are
evaluated with a few unrelated primes in place of the symbols: polynomials as small as these that agree there are equal.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

from agent.errors import ProposalFailed

_PRIMES = (
    (10007, 20011, 30011, 40009, 50021, 60013, 70001, 80021),
    (7919, 6997, 5003, 4001, 3001, 2003, 1009, 503),
)

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def is_contiguous(sizes: Sequence[str], strides: Sequence[str]) -> bool:
    """Row-major without gaps; the stride of a dimension of size 1 does not matter."""
    for values in _points([*sizes, *strides]):
        expected = 1
        for size, stride in reversed(list(zip(sizes, strides, strict=True))):
            extent = evaluate(size, values)
            if extent != 1 and evaluate(stride, values) != expected:
                return False
            expected *= extent
    return True


def is_transposed(sizes: Sequence[str], strides: Sequence[str]) -> bool:
    """A matrix that is the transpose of a contiguous one."""
    return len(sizes) == 2 and is_contiguous(sizes[::-1], strides[::-1])


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The value of an integer expression made of names, numbers, + - * // %, max and min.

    Raises:
        ProposalFailed: if the text is anything else.
    """
    try:
        return _value(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, KeyError) as error:
        raise ProposalFailed(f"a size is not an integer expression: {text[:80]}") from error


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        chosen = max if node.func.id == "max" else min
        return chosen(_value(argument, values) for argument in node.args)
    raise ValueError(ast.unparse(node))


def _points(texts: Sequence[str]) -> list[dict[str, int]]:
    names = sorted(
        {node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    )
    return [dict(zip(names, (primes * 4)[: len(names)], strict=False)) for primes in _PRIMES]
