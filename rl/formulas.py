"""Extracts what a module computes from its text: its operations and their operands, normalized over torch's spellings.

Functions, methods, operators and modules without weights map to one name; variable names, the order of statements and unused results
do not matter. Nothing is run. The result measures similarity and proves nothing: calls of the file's own functions are not
followed, and a loop or a branch counts as its statements.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_SYNONYMS = {
    "absolute": "abs", "bmm": "matmul", "clip": "clamp", "concat": "cat", "concatenate": "cat", "divide": "div", "expit": "sigmoid",
    "mm": "matmul", "multiply": "mul", "negative": "neg", "subtract": "sub", "truedivide": "div",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
}
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2, "reciprocal": -1}
_COMMUTATIVE = frozenset({"add", "mul"})
#: Argument values to ignore, since they are the usual defaults.
_UNSAID = frozenset({"None", "False", "'none'"})
_SPACES = frozenset({"torch", "nn", "functional", "special", "Tensor", "math"})


@dataclass(eq=False)
class _Value:
    """An operation and its operands; a value that is used twice is one object."""

    operation: str
    of: tuple[_Value, ...] = ()


def formula(tree: ast.Module) -> Counter[tuple[str, ...]]:
    """Count the operations of a module: each key is an operation's name followed by the names of its operands.

    Args:
        tree: a module file without the statements that only describe calls (inputs, dimensions).
    """
    reader = _Reader(tree)
    pending = [value for function in reader.functions() for value in reader.results(function)]
    seen: dict[int, _Value] = {}
    found: Counter[tuple[str, ...]] = Counter()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            pending += value.of
            if value.of:
                names = [one.operation for one in value.of]
                found[value.operation, *(sorted(names) if value.operation in _COMMUTATIVE else names)] += 1
    return found


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imported: dict[str, str] = {}
        self._modules: dict[str, ast.expr] = {}  # calls assigned to attributes of self, other than parameters
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} - {"forward"}
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self._imported |= {one.asname or one.name: one.name.rpartition(".")[2] for one in names}
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Call() as made
                ):
                    if not ast.unparse(made.func).endswith("Parameter"):
                        self._modules[name] = made

    def functions(self) -> Iterator[ast.FunctionDef]:
        """The functions to read: all except constructors."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                yield node

    def results(self, function: ast.FunctionDef) -> list[_Value]:
        """The values that a function returns, stores or evaluates as statements."""
        spec = function.args
        names = [one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if one.arg != "self"]
        self._names = {name: _Value(f"argument {place}") for place, name in enumerate(names)}
        self._results: list[_Value] = []
        self._block(function.body)
        return self._results

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    pass  # handled in the constructor
                case ast.Assign(targets=[target], value=value):
                    self._bind(target, self._value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind(target, self._value(value))
                case ast.AugAssign(target=target, op=operator, value=value):
                    self._bind(
                        target, self._operation(type(operator), self._value(target), self._value(value))
                    )
                case ast.For(target=target, iter=value, body=body):
                    self._bind(target, _Value("item", (self._value(value),)))
                    self._block(body)
                case ast.FunctionDef():
                    pass  # `functions` yields it separately
                case _:
                    parts = list(ast.iter_child_nodes(statement))
                    self._results += [self._value(one) for one in parts if isinstance(one, ast.expr)]
                    self._block([one for one in parts if isinstance(one, ast.stmt)])

    def _bind(self, target: ast.expr, value: _Value) -> None:
        match target:
            case ast.Name(id=name):
                self._names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for place, part in enumerate(parts):
                    self._bind(part, _Value(f"part {place}", (value,)))
            case _:
                self._results.append(_Value("put", (self._value(target), value)))

    def _value(self, node: ast.AST) -> _Value:
        match node:
            case ast.Constant(value=value):
                whole = int(value) if isinstance(value, float) and value.is_integer() else value
                return _Value(repr(whole))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return self._value(ast.Constant(-value))
            case ast.UnaryOp(op=ast.USub(), operand=value):
                return _Value("neg", (self._value(value),))
            case ast.Name(id=name):
                return self._names.get(name) or _Value(self._imported.get(name, "name"))
            case ast.Tuple(elts=[one]) | ast.List(elts=[one]):
                return self._value(one)  # `dim=(-1,)`
            case ast.BinOp(left=left, op=operator, right=right):
                return self._operation(type(operator), self._value(left), self._value(right))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return _Value("kept") if name not in self._modules else self._value(self._modules[name])
            case ast.Attribute(value=value, attr=name):
                space = self._space(value)
                return _Value(name) if space else _Value(name, (self._value(value),))
            case ast.Call():
                return self._call(node)
        parts = [
            self._value(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr | ast.keyword)
        ]
        return _Value(type(node).__name__, tuple(parts))

    def _space(self, node: ast.expr) -> bool:
        """Whether an expression is one of torch's namespaces and not a value."""
        if isinstance(node, ast.Attribute):
            return node.attr in _SPACES and self._space(node.value)
        return (
            isinstance(node, ast.Name)
            and node.id not in self._names
            and self._imported.get(node.id) in _SPACES
        )

    def _call(self, node: ast.Call) -> _Value:
        named = {one.arg: one.value for one in node.keywords if one.arg != "inplace"}
        first = [named.pop("input")] if "input" in named else []
        given = [*first, *node.args, *named.values()]
        settings = [one for one in given if ast.unparse(one) not in _UNSAID]
        arguments = [self._value(one) for one in settings]
        match node.func:
            case ast.Name(id=name) if name in self._names:
                return _Value("call", (self._names[name], *arguments))
            case ast.Name(id=name):
                return self._named(self._imported.get(name, name), arguments)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self._modules:
                made = self._value(self._modules[name])
                return self._named(made.operation, [*arguments, *made.of])
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._named(name, arguments)
            case ast.Attribute(value=value, attr=name):
                return self._named(
                    name, arguments if self._space(value) else [self._value(value), *arguments]
                )
        made = self._value(node.func)  # nn.Softmax(-1)(x)
        return self._named(made.operation, [*arguments, *made.of])

    def _named(self, name: str, arguments: list[_Value]) -> _Value:
        if name in self._own:
            return _Value("own", tuple(arguments))
        name = name.lower().replace("_", "")
        name = _SYNONYMS.get(name, name)
        if name in _POWERS and len(arguments) == 1:
            return _Value("pow", (arguments[0], _Value(repr(_POWERS[name]))))
        operator = next((one for one, word in _OPERATORS.items() if word == name), None)
        if operator is not None and len(arguments) == 2:
            return self._operation(operator, *arguments)
        return _Value(name, tuple(arguments))

    @staticmethod
    def _operation(operator: type[ast.operator], left: _Value, right: _Value) -> _Value:
        """A binary operation; `x * x` becomes a power, and division by a power becomes multiplication by its inverse."""
        if operator is ast.Mult and left is right:
            return _Value("pow", (left, _Value("2")))
        if operator is ast.Div and right.operation == "pow":
            base, exponent = right.of
            power = _Value("pow", (base, _Value(f"-{exponent.operation}".removeprefix("--"))))
            return power if left.operation == "1" else _Value("mul", (left, power))
        return _Value(_OPERATORS.get(operator, operator.__name__), (left, right))
