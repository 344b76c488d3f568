"""Rebuilds a task file so that its sizes are keyword arguments of `get_inputs` and `get_init_inputs`.

Sizes are found in the syntax tree, and the file is rebuilt from it: existing keyword parameters first, otherwise
the file's constants and the integers in shapes. A constant that other code of the file reads (the module itself)
would have to change in two places at once, so it stays fixed, with that reason. The source is untrusted: run this
only in a disposable process.
"""

from __future__ import annotations

import ast
import operator
import symtable
from collections.abc import Callable
from dataclasses import dataclass, field

FUNCTIONS = ("get_inputs", "get_init_inputs")
DTYPES = ("float32", "bfloat16", "float16", "float64")
#: Creators whose positional integers are sizes; for the others only the integers in a tuple or list are.
_SIZED = ("rand", "randn", "zeros", "ones", "empty")
_CREATORS = (*_SIZED, "randint", "full", "normal")
_MOST_TEXT = 1 << 20
_TOO_LARGE, _MOST_BITS = 1 << 31, 31
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip


class Unreadable(Exception):
    """The file cannot be rebuilt; the message is for the user."""


@dataclass(frozen=True)
class Knob:
    """A value that may be varied.

    Attributes:
        name: the keyword argument that carries it.
        default: its value in the file.
        origin: ``parameter``, ``constant`` or ``literal``.
        functions: which of :data:`FUNCTIONS` take it.
    """

    name: str
    default: int | str
    origin: str
    functions: tuple[str, ...]


@dataclass
class Rebuilt:
    """A file whose sizes are keyword arguments.

    Attributes:
        source: the rebuilt text, without `DIMS`.
        knobs: what may be varied.
        fixed: what may not be, and why, by name.
    """

    source: str
    knobs: list[Knob] = field(default_factory=list)
    fixed: dict[str, str] = field(default_factory=dict)


def rebuild(text: str) -> Rebuilt:
    """The file with its sizes as keyword arguments.

    Raises:
        Unreadable: it is not Python or lacks one of the functions.
    """
    if len(text) > _MOST_TEXT:
        raise Unreadable(f"the file is longer than {_MOST_TEXT} characters")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"the file does not parse: {error}") from None
    tree.body = [node for node in tree.body if "DIMS" not in _targets(node) and not _is_main_guard(node)]
    functions = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
    }
    for name in FUNCTIONS:
        if name not in functions:
            raise Unreadable(f"the file defines no function {name}()")
    parameters, fixed = _parameters(functions)
    if not parameters:
        parameters = _Constants(tree, functions, fixed).lift()
    return Rebuilt(ast.unparse(ast.fix_missing_locations(tree)), parameters, fixed)


def _targets(node: ast.stmt) -> list[str]:
    """Names that a top-level statement of the file assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names: list[str] = []
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names.extend(part.id for part in parts if isinstance(part, ast.Name))
    return names


def _is_size(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < _TOO_LARGE


def _is_dtype(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in DTYPES


def _size(node: ast.AST | None) -> int | None:
    """The value of an integer expression such as ``2048 * 2``; None if it is not one."""
    if isinstance(node, ast.Constant):
        return node.value if _is_size(node) and isinstance(node.value, int) else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    left, right = _size(node.left), _size(node.right)
    if left is None or right is None:
        return None
    # Powers in a hostile file could exhaust memory.
    if isinstance(node.op, (ast.Pow, ast.LShift)) and right > _MOST_BITS:
        return None
    try:
        value = _ARITHMETIC[type(node.op)](left, right)
    except ZeroDivisionError:
        return None
    return value if 0 <= value < _TOO_LARGE else None


def _is_main_guard(node: ast.stmt) -> bool:
    """``if __name__ == "__main__":`` never runs here, so what it reads does not matter."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _parameters(functions: dict[str, ast.FunctionDef]) -> tuple[list[Knob], dict[str, str]]:
    """Keyword parameters whose defaults are integers or names of dtypes."""
    found: dict[str, Knob] = {}
    fixed: dict[str, str] = {}
    for function, node in functions.items():
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [None] * (len(arguments) - len(node.args.defaults))
        pairs = [*zip(arguments, [*defaults, *node.args.defaults], strict=True)]
        pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        for argument, default in pairs:
            name = argument.arg
            value = (
                default.value if _is_dtype(default) and isinstance(default, ast.Constant) else _size(default)
            )
            if value is None:
                fixed[name] = f"the default of {function}({name}) is neither a size nor the name of a dtype"
                continue
            assert isinstance(value, (int, str))
            known = found.get(name)
            if known is not None and known.default != value:
                fixed[name] = f"its defaults differ: {known.default} and {value}"
                continue
            users = (*known.functions, function) if known else (function,)
            found[name] = Knob(name, value, "parameter", users)
    return [knob for name, knob in found.items() if name not in fixed], fixed


def _reads(node: ast.AST) -> set[str]:
    """Names of the file's own scope that some code reads. A parameter with the same name is another variable."""
    text = ast.unparse(ast.fix_missing_locations(node))
    waiting = [symtable.symtable(text, "task.py", "exec")]
    found: set[str] = set()
    while waiting:
        table = waiting.pop()
        at_top = table.get_type() == "module"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (at_top or symbol.is_global())
        }
        waiting.extend(table.get_children())
    return found


class _Constants:
    """Lifts constants and literal sizes of a file into parameters of its two functions."""

    def __init__(
        self, tree: ast.Module, functions: dict[str, ast.FunctionDef], fixed: dict[str, str]
    ) -> None:
        self._tree = tree
        self._functions = functions
        self._fixed = fixed
        #: The file's integer and dtype constants, those computed from others, in file order, and other assigned
        #: names, each with the reason why it is not a size.
        self._plain: dict[str, int | str] = {}
        self._derived: dict[str, ast.expr] = {}
        self._other: dict[str, str] = {}
        for node in tree.body:
            self._read_assignment(node)

    def _read_assignment(self, node: ast.stmt) -> None:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            for name in _targets(node):
                self._forget(name)
            return
        names = _targets(node)
        values = node.value.elts if len(names) > 1 and isinstance(node.value, ast.Tuple) else [node.value]
        if len(values) != len(names):
            values = [ast.Constant(None)] * len(names)
        for name, value in zip(names, values, strict=True):
            if name in self._plain or name in self._derived:
                self._forget(name)
                self._fixed[name] = "the file assigns it more than once"
            elif (size := _size(value)) is not None:
                self._plain[name] = size
            elif _is_dtype(value) and isinstance(value, ast.Constant):
                self._plain[name] = str(value.value)
            elif self._is_simple(value):
                self._derived[name] = value
            elif not isinstance(value, (ast.Constant, ast.UnaryOp)):
                self._other[name] = f"sizes are not searched in {_kind(value)}"

    def _forget(self, name: str) -> None:
        self._plain.pop(name, None)
        self._derived.pop(name, None)

    def _is_simple(self, value: ast.expr) -> bool:
        """An expression or a tuple of sizes that can be computed again inside a function."""
        allowed = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.operator)
        parts = list(ast.walk(value))
        simple = all(isinstance(part, (*allowed, ast.unaryop, ast.expr_context)) for part in parts)
        known = all(name in self._plain or name in self._derived for name in _reads(value))
        sizes = any(_is_size(part) or isinstance(part, ast.Name) for part in parts)
        return simple and known and sizes

    def _sources(self, names: set[str]) -> set[str]:
        """All constants on which some names depend, including themselves."""
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in reached or (name not in self._plain and name not in self._derived):
                continue
            reached.add(name)
            waiting.extend(_reads(self._derived[name]) if name in self._derived else ())
        return reached

    def _reached(self) -> set[str]:
        """Names that the two functions read, including in functions of the file that they call."""
        called = {node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        reached: set[str] = set()
        waiting = list(self._functions)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(_reads(called[name]) if name in called else ())
                waiting.extend(_reads(self._derived[name]) if name in self._derived else ())
        return reached

    def lift(self) -> list[Knob]:
        """Adds the parameters to the functions. What other code reads goes into ``fixed``."""
        needs = {name: self._sources(_reads(node)) for name, node in self._functions.items()}
        elsewhere: set[str] = set()
        for node in self._tree.body:
            is_constant = all(name in self._derived or name in self._plain for name in _targets(node))
            if node not in self._functions.values() and not (_targets(node) and is_constant):
                elsewhere |= self._sources(_reads(node))
        used = self._reached()
        for name in sorted(used & set(self._other)):
            self._fixed[name] = self._other[name]
        for name in sorted(self._sources(used) & elsewhere & set(self._plain)):
            self._fixed[name] = "other code of the file reads this constant too"
        values: dict[str, int | str] = {}
        origins: dict[str, str] = {}
        users: dict[str, list[str]] = {}
        taken = self._names()
        for function, node in self._functions.items():
            prelude: list[ast.stmt] = []
            own: dict[str, int | str] = {}
            for name in (name for name in self._plain if name in needs[function]):
                if name not in self._fixed:
                    own[name] = self._plain[name]
                    origins[name] = "constant"
            for name, value in self._derived.items():
                if name in needs[function] and name not in elsewhere:
                    copy = ast.parse(ast.unparse(value), mode="eval").body
                    lifted = _Literals(name, taken, tuples_only=True).lift(copy)
                    # The same literal of a shared constant is one size in both functions.
                    own |= lifted.found
                    origins |= dict.fromkeys(lifted.found, "literal")
                    prelude.append(ast.Assign([ast.Name(name, ast.Store())], lifted.tree))
            for statement in node.body:
                lifted = _Literals("size" if function == "get_inputs" else "argument", taken).lift(statement)
                own |= lifted.found
                origins |= dict.fromkeys(lifted.found, "literal")
                taken |= set(lifted.found)
            node.body[:0] = prelude
            node.args.kwonlyargs = [*node.args.kwonlyargs, *(ast.arg(name) for name in own)]
            node.args.kw_defaults = [
                *node.args.kw_defaults, *(ast.Constant(value) for value in own.values())
            ]  # fmt: skip
            values |= own
            for name in own:
                users.setdefault(name, []).append(function)
        return [Knob(name, value, origins[name], tuple(users[name])) for name, value in values.items()]

    def _names(self) -> set[str]:
        return {part.id for part in ast.walk(self._tree) if isinstance(part, ast.Name)}


def _kind(value: ast.expr) -> str:
    kinds = {ast.Dict: "a dict", ast.Call: "a call", ast.Subscript: "an element of something"}
    return kinds.get(type(value), "such an expression")


class _Literals(ast.NodeTransformer):
    """Replaces integers in a shape, or in the list of constructor arguments, by names."""

    def __init__(self, stem: str, taken: set[str], *, tuples_only: bool = False) -> None:
        self._stem = stem
        self._taken = taken
        self._tuples_only = tuples_only
        self.found: dict[str, int] = {}
        self.tree: ast.expr = ast.Constant(None)

    def lift(self, node: ast.AST) -> _Literals:
        """Replaces them in a tree, which is :attr:`tree` afterwards."""
        if self._tuples_only:
            node = self._elements(node)
        else:
            node = self.visit(node)
        if isinstance(node, ast.expr):
            self.tree = node
        return self

    def _elements(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Tuple, ast.List)):
            node.elts = [self._replaced(part, place) for place, part in enumerate(node.elts)]
        return node

    def _replaced(self, node: ast.expr, place: int = 0) -> ast.expr:
        """A name for a size. In a shared constant it has the index there, since (1, 2) has no size at 0."""
        if isinstance(node, (ast.Tuple, ast.List)):
            self._elements(node)
            return node
        size = _size(node)
        if size is None or size < 2:
            return node
        index = place if self._tuples_only else 0
        while (name := f"{self._stem}_{index}") in self.found or name in self._taken:
            index += 1
        self.found[name] = size
        return ast.Name(name, ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A creator of tensors: its sizes."""
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in _CREATORS:
            for index, argument in enumerate(node.args):
                if isinstance(argument, (ast.Tuple, ast.List)) or called in _SIZED:
                    node.args[index] = self._replaced(argument)
            for keyword in node.keywords:
                if keyword.arg == "size":
                    keyword.value = self._replaced(keyword.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """A shape that is assigned before it is used."""
        self._elements(node.value)
        self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """The list of constructor arguments."""
        if self._stem == "argument" and node.value is not None:
            self._elements(node.value)
        self.generic_visit(node)
        return node
