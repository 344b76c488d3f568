"""Renames module-level names in source text and keeps comments and layout where possible.

The syntax tree resolves each name; the text is then edited at the same places and must parse to the renamed tree.
If it does not (Python 3.11 gives wrong positions inside f-strings), the result is the unparsed tree.
"""

from __future__ import annotations

import ast
import copy
import io
import tokenize
from collections.abc import Mapping
from typing import Any

from agent.errors import AssemblyError

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def rename(text: str, mapping: Mapping[str, str]) -> str:
    """Rename module-level names of `text`, but not keyword arguments, attributes or local names of functions.

    Raises:
        AssemblyError: if a name is bound by `import a.b`, which cannot be renamed.
    """
    if not mapping:
        return text
    tree = ast.parse(text)
    renamer = _Renamer(mapping)
    expected = renamer.visit(copy.deepcopy(tree))
    edited = _edit(text, renamer, mapping)
    try:
        if ast.dump(ast.parse(edited)) == ast.dump(expected):
            return edited
    except SyntaxError:
        pass
    return ast.unparse(ast.fix_missing_locations(expected)) + "\n"


def renamed(tree: ast.Module, mapping: Mapping[str, str]) -> ast.Module:
    """Rename in a syntax tree, in place; see `rename`."""
    result: ast.Module = _Renamer(mapping).visit(tree)
    return ast.fix_missing_locations(result)


class _Renamer(ast.NodeTransformer):
    """Renames in the tree and records the places: lines count from 1, columns are UTF-8 bytes, as in `ast`."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self.mapping = mapping
        self.hidden: list[set[str]] = []  # local names of the functions around the current node
        self.places: list[tuple[int, int, str]] = []  # line, column, old name
        self.imports: list[ast.Import | ast.ImportFrom] = []  # statements to rewrite as a whole

    def _applies(self, name: str) -> bool:
        return name in self.mapping and not any(name in names for names in self.hidden)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if self._applies(node.id):
            self.places.append((node.lineno, node.col_offset, node.id))
            node.id = self.mapping[node.id]
        return node

    def visit_Global(self, node: ast.Global) -> ast.Global:
        for name in node.names:
            if name in self.mapping:
                self.places.append((node.lineno, node.col_offset, name))
        node.names = [self.mapping.get(name, name) for name in node.names]
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        if node.name and self._applies(node.name):
            self.places.append((node.lineno, node.col_offset, node.name))
            node.name = self.mapping[node.name]
        self.generic_visit(node)
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if self._applies(bound):
                if "." in alias.name and not alias.asname:
                    raise AssemblyError(
                        f"two parts of the module use the name {bound!r} for different imports"
                    )
                alias.asname = self.mapping[bound]
                self.imports.append(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        for alias in node.names:
            bound = alias.asname or alias.name
            if self._applies(bound):
                alias.asname = self.mapping[bound]
                self.imports.append(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._name(node)
        node.decorator_list = [self.visit(item) for item in node.decorator_list]
        node.bases = [self.visit(item) for item in node.bases]
        node.keywords = [self.visit(item) for item in node.keywords]
        # Names bound in a class body are visible in that body but not in its methods.
        own = _locals_of(node.body)
        body: list[Any] = []
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body.append(self._function(statement, rename_itself=False))
            else:
                self.hidden.append(own)
                body.append(self.visit(statement))
                self.hidden.pop()
        node.body = body
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node, rename_itself=True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node, rename_itself=True)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._outer_parts(node.args)
        self.hidden.append(_arguments(node.args))
        node.body = self.visit(node.body)
        self.hidden.pop()
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        return self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return self._comprehension(node)

    def _comprehension(self, node: _Comprehension) -> ast.AST:
        targets = {
            item.id
            for generator in node.generators
            for item in ast.walk(generator.target)
            if isinstance(item, ast.Name)
        }
        node.generators[0].iter = self.visit(node.generators[0].iter)  # evaluated in the outer scope
        outer = node.generators[0].iter
        node.generators[0].iter = ast.Constant(value=None)
        self.hidden.append(targets)
        self.generic_visit(node)
        self.hidden.pop()
        node.generators[0].iter = outer
        return node

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, rename_itself: bool) -> ast.AST:
        if rename_itself:
            self._name(node)
        node.decorator_list = [self.visit(item) for item in node.decorator_list]
        if node.returns is not None:
            node.returns = self.visit(node.returns)
        self._outer_parts(node.args)
        declared = {
            name for item in _same_scope(node.body) if isinstance(item, ast.Global) for name in item.names
        }
        self.hidden.append((_arguments(node.args) | _locals_of(node.body)) - declared)
        node.body = [self.visit(statement) for statement in node.body]
        self.hidden.pop()
        return node

    def _name(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if self._applies(node.name):
            self.places.append((node.lineno, node.col_offset, node.name))
            node.name = self.mapping[node.name]

    def _outer_parts(self, arguments: ast.arguments) -> None:
        """Visit defaults and annotations, which belong to the enclosing scope."""
        arguments.defaults = [self.visit(item) for item in arguments.defaults]
        arguments.kw_defaults = [item and self.visit(item) for item in arguments.kw_defaults]
        for argument in _argument_nodes(arguments):
            if argument.annotation is not None:
                argument.annotation = self.visit(argument.annotation)


def _argument_nodes(arguments: ast.arguments) -> list[ast.arg]:
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]


def _arguments(arguments: ast.arguments) -> set[str]:
    return {argument.arg for argument in _argument_nodes(arguments)}


def _locals_of(body: list[ast.stmt]) -> set[str]:
    """Names that assignments, imports, definitions and exception handlers bind directly in this body."""
    names: set[str] = set()
    for node in _same_scope(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _same_scope(body: list[ast.stmt]) -> list[ast.AST]:
    found: list[ast.AST] = []
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        found.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        queue.extend(ast.iter_child_nodes(node))
    return found


def _edit(text: str, renamer: _Renamer, mapping: Mapping[str, str]) -> str:
    """Apply the renamer's changes to the text."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    tokens: dict[str, list[tuple[int, int]]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string in mapping:
            column = len(token.line[: token.start[1]].encode())
            tokens.setdefault(token.string, []).append((token.start[0], column))
    edits: set[tuple[int, int, int, int, str]] = set()
    for line, column, name in renamer.places:
        later = [place for place in tokens.get(name, []) if place >= (line, column)]
        if later:
            edits.add((*later[0], later[0][0], later[0][1] + len(name.encode()), mapping[name]))
    for node in renamer.imports:
        end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        edits.add((node.lineno, node.col_offset, *end, ast.unparse(node)))
    for line, column, end_line, end_column, new in sorted(edits, reverse=True):
        joined = lines[line - 1][:column] + new.encode() + lines[end_line - 1][end_column:]
        lines[line - 1 : end_line] = [joined] + [b""] * (end_line - line)
    return b"".join(lines).decode()
