"""One name for what several files call differently: locals, functions, constants and imports of a candidate, numbered.

A renaming is one to one within each function and within the module, so files that differ in what a name means stay different.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping

from agent.strategy.dead_code import BUILTINS, Function, bound_inside, parameters, units, untouchable

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class CanonicalNames:
    """Names for one file.

    Args:
        tree: of the whole file.
        bindings: how many different statements bind each module-level name.
        paths: what an imported name stands for, dotted.
        kept: names that something outside the code asks for.
        name_of: the full dotted name of an expression, "" for what has none.
    """

    def __init__(
        self,
        tree: ast.Module,
        bindings: Mapping[str, int],
        paths: Mapping[str, str],
        kept: set[str],
        name_of: Callable[[ast.expr], str],
    ) -> None:
        self._tree = tree
        self._bindings = bindings
        self._paths = paths
        self._kept = kept
        self._name_of = name_of
        self._keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}

    def rename(self, statements: Iterable[ast.stmt], reached: Mapping[str, ast.stmt]) -> None:
        """Numbers for names of the file's own choice: one to one, so that what was different stays different."""
        shadowed = {argument.arg for argument in parameters(self._tree)}
        for scope in _scopes(self._tree):
            # The name of a function or class itself belongs to the module.
            for part in ast.iter_child_nodes(scope):
                shadowed.update(bound_inside(part))
        fixed = {*shadowed, *self._kept}
        names: dict[str, str] = {}
        for name, statement in reached.items():
            if name in fixed or name.startswith("__"):
                continue
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                # `torch.nn` for `nn`, unless `torch` is something else here.
                top = self._paths[name].partition(".")[0]
                if top not in shadowed and self._paths.get(top, top) == top and self._bindings[top] < 2:
                    names[name] = self._paths[name]
            else:
                names[name] = f"g{len(names)}_"
        renamer = _Renamer(names)
        for statement in statements:
            for unit, method in units(ast.Module([statement], [])):
                local = _Renamer(self._locals(unit, method))
                for part in (*own_parameters(unit), *unit.body):
                    local.visit(part)
            renamer.visit(statement)

    def _locals(self, unit: Function, method: bool) -> dict[str, str]:
        """New names for the locals of a function and of what lies in it, numbered as they appear."""
        free: set[str] = set()
        held: set[str] = set()
        for node in ast.walk(unit):
            if isinstance(node, Function):
                known = all(self._name_of(item) == "triton.jit" for item in node.decorator_list)
                target = free if known and not (method and node is unit) else held
                target.update(item.arg for item in own_parameters(node))
            elif isinstance(node, ast.Lambda):
                free.update(argument.arg for argument in parameters(node.args))
        # Whoever calls may name a parameter; nobody outside can name a local.
        held |= free & (self._keywords | self._kept)
        inside = {name for statement in unit.body for name in bound_inside(statement)}
        chosen = (inside | free) - held - untouchable(unit) - set(self._bindings) - BUILTINS
        names: dict[str, str] = {}
        for node in in_text_order(unit):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if isinstance(node, Function) and node is not unit:
                name = node.name
            if name in chosen and not name.startswith("__"):
                names.setdefault(name, f"v{len(names)}_")
        return names


class _Renamer(ast.NodeTransformer):
    """Replaces names wherever they stand; attributes and keywords are no names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        self.generic_visit(node)  # its annotation
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = self._names.get(node.name, node.name)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.name = self._names.get(node.name, node.name)
        return node

    def visit_alias(self, node: ast.alias) -> ast.alias:
        if node.asname in self._names:
            node.asname = None
        return node


def _scopes(node: ast.AST) -> Iterator[ast.AST]:
    """The outermost functions, classes and comprehensions: what they bind inside is no name of the module's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_DEFINITIONS, *COMPREHENSIONS)):
            yield child
        else:
            yield from _scopes(child)


def own_parameters(function: Function) -> list[ast.arg]:
    """Of a function itself, in order."""
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    return [item for item in every if item is not None]


def in_text_order(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it as they stand in the tree, depth first."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_text_order(child)
