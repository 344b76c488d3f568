"""The normal form of a candidate: one text for all files that differ only in ways that cannot affect the result.

The normal form ignores comments, docstrings, layout, unreachable definitions and the names of locals, functions and constants, and
keeps everything else: two files that could behave differently never share a normal form, except for line numbers in exceptions. A
file that inspects itself (`eval`, `globals()`, `inspect`) loses only its comments and layout.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping

from agent.bundle.renaming import renamed
from agent.bundle.sections import bound_names, cut, is_main_guard
from agent.errors import AssemblyError

#: Names that the referee and the tuner read from a candidate.
_ROOTS = frozenset({"ModelNew", "TUNABLES"})
_LOOKS_AT_ITSELF = frozenset(
    "globals locals vars dir eval exec compile breakpoint __import__ __name__ __file__ __doc__ __dict__ __code__ __globals__"
    " __closure__ __annotations__ __defaults__ __kwdefaults__ __qualname__ __module__ __subclasses__ __init_subclass__ _getframe"
    " co_names f_locals f_globals settrace setprofile getattr setattr hasattr delattr".split()
)
_SELF_LOOKING_MODULES = frozenset(
    "ast builtins dis gc importlib inspect linecache pickle runpy subprocess sys traceback".split()
)
_BUILTINS = frozenset(dir(builtins))
_OWN_NAMES = re.compile(r"\b[vg]\d+_\b")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# C++, CUDA and PTX in strings: comments and insignificant whitespace go, without a parser. A text stays unchanged unless it is
# clearly such a source and nothing reads its characters.
_LITERAL = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"
_COMMENT = re.compile(rf"(?P<literal>{_LITERAL})|//(?:\\\n|[^\n])*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(rf"(?P<literal>{_LITERAL})|\s+")
_PYTHON_LINE = re.compile(r"^\s*(def |import |from \w|class \w+.*:\s*$|@\w)", re.MULTILINE)
_PUNCTUATION = "(){}[];,"
#: Methods and functions that edit or read a text; in an edited text, a comment may be a placeholder.
_EDITS = frozenset(
    "replace format format_map sub subn split rsplit splitlines partition rpartition substitute safe_substitute find rfind"
    " index rindex count translate removeprefix removesuffix startswith endswith search match findall finditer".split()
)
#: Nodes that bind names differently from plain local assignment.
_ODD = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)  # fmt: skip


def normal_form(source: str) -> str | None:
    """The text that all equivalent files share; None if the source is not valid Python or cannot be normalized."""
    try:
        tree = ast.parse(source)
        tree.body = [one for one in tree.body if not is_main_guard(one)]
        if _OWN_NAMES.search(source) or _looks_at_itself(tree):
            return ast.unparse(tree)
        if any(_ROOTS & set(bound_names(statement)) for statement in tree.body):
            tree = _reached(source, tree)
        _drop_texts(tree)
        _squeeze_texts(tree)
        return ast.unparse(_numbered(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError, AssemblyError):
        return None


def _looks_at_itself(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                if name in _LOOKS_AT_ITSELF:
                    return True
            case ast.Attribute(attr=name) if name in _LOOKS_AT_ITSELF:
                return True
            case ast.Name(id=name) if name in _LOOKS_AT_ITSELF - {"getattr", "hasattr"}:
                return True
            case ast.Import(names=names) if any(_top(one.name) in _SELF_LOOKING_MODULES for one in names):
                return True
            case ast.ImportFrom(module=module, names=names):
                if _top(module or "") in _SELF_LOOKING_MODULES or any(one.name == "*" for one in names):
                    return True
            case ast.Call(func=ast.Name(id="getattr" | "hasattr")):
                return True
    return False


def _top(module: str) -> str:
    return module.partition(".")[0]


def _reached(source: str, tree: ast.Module) -> ast.Module:
    """The code that the model and statements with effects need, plus the tunables, in order, as in a bundle."""
    if not any("ModelNew" in bound_names(statement) for statement in tree.body):
        return tree
    section = cut(source, "ModelNew")
    kept = ast.parse(section.text)
    future = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    tunables = [
        one for one in tree.body if set(bound_names(one)) == {"TUNABLES"} and "TUNABLES" not in section.names
    ]
    kept.body = [*future, *kept.body, *tunables]
    return kept


def _drop_texts(tree: ast.Module) -> None:
    """Remove docstrings and other expression statements that are only a constant."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]


def _squeeze_texts(tree: ast.Module) -> None:
    """Strip comments and layout from C++ in strings, unless the program edits its strings."""
    if _edits_texts(tree):
        return
    pieces = {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            if _is_native(node.value):
                node.value = _squeezed(node.value)


def _numbered(tree: ast.Module) -> ast.Module:
    """Replace names that the file chose by numbers, one to one within each function and within the module."""
    kept = {*_BUILTINS, *_ROOTS}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg:
            kept.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_native(node.value):
            kept.update(re.findall(r"\w+", node.value))
    at_module = [name for one in tree.body for name in bound_names(one)]
    for unit, method in _units(tree):
        names = _numbers(_locals(unit, method, kept, {*_BUILTINS, *at_module}), "v")
        _Flat(names).visit(unit.args)
        for statement in unit.body:
            _Flat(names).visit(statement)
    imported = {name for one in tree.body for name, path in bound_names(one).items() if path}
    own = [name for name in at_module if name not in kept | imported and not name.startswith("__")]
    return renamed(tree, _numbers(own, "g"))


def _numbers(names: Iterable[str], letter: str) -> dict[str, str]:
    return {name: f"{letter}{number}_" for number, name in enumerate(dict.fromkeys(names))}


def _units(tree: ast.AST, method: bool = False) -> Iterator[tuple[_Function, bool]]:
    """Functions that are not nested in another function, and whether each is a method."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _Function):
            yield child, method
        elif not isinstance(child, ast.expr):
            yield from _units(child, method or isinstance(child, ast.ClassDef))


def _locals(unit: _Function, method: bool, asked: set[str], known: set[str]) -> list[str]:
    """Names that a function and its nested code bind as plain locals, in source order.

    Args:
        unit: the function.
        method: whether it is a method. Parameters of methods and decorated functions keep their names, since callers may
            pass them as keywords.
        asked: names that the file uses as keywords or in strings; parameters with these names are not renamed.
        known: names with a meaning outside the function.
    """
    held, found = set(known), []
    for node in _in_order(unit):
        if isinstance(node, _Function):
            plain = all(ast.unparse(one) == "triton.jit" for one in node.decorator_list)
            parameters = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
            held.update(parameters if not plain or (method and node is unit) else parameters & asked)
            if node is not unit:
                found.append(node.name)
        elif isinstance(node, ast.Lambda):
            held.update(asked & {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)})
        elif isinstance(node, ast.ClassDef):
            held.update(name for part in (node, *node.body) for name in bound_names(part))
        elif isinstance(node, _ODD):
            named = [
                one.asname or _top(one.name)
                for one in getattr(node, "names", ())
                if isinstance(one, ast.alias)
            ]
            held.update(named or getattr(node, "names", ()))
            held.update(filter(None, (getattr(node, "name", None), getattr(node, "rest", None))))
        elif isinstance(node, ast.arg):
            found.append(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.append(node.id)
            held.update({node.id} if isinstance(node.ctx, ast.Del) else ())
    return [name for name in found if name not in held and not name.startswith("__")]


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all its descendants, depth first."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


class _Flat(ast.NodeTransformer):
    """Replaces names everywhere, except attributes and keywords."""

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


def _edits_texts(tree: ast.Module) -> bool:
    """Whether the program may read or edit its strings before it passes them on."""
    texts = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.JoinedStr))
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_text(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in texts
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _EDITS:
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_text(node.left):
            return True
        if isinstance(node, (ast.Subscript, ast.Attribute)) and is_text(node.value):
            return True
    return False


def _is_native(text: str) -> bool:
    """Whether a text looks like C++ or PTX: it has statements, and no line looks like Python."""
    return ";" in text and any(sign in text for sign in "{(\n") and not _PYTHON_LINE.search(text)


def _squeezed(text: str) -> str:
    """The text as a compiler sees it, except for line numbers."""
    if 'R"' in text or "__LINE__" in text:
        return text
    bare = _COMMENT.sub(lambda found: found["literal"] or " ", text)
    code: list[str] = []
    lines: list[str] = []
    directive = False
    for line in bare.split("\n"):
        # Whitespace distinguishes `#define F (x)` from `#define F(x)`, and a newline ends a directive.
        if directive or line.lstrip().startswith("#"):
            lines += [_without_spaces("\n".join(code)), line.strip()]
            code = []
            directive = line.rstrip().endswith("\\")
        else:
            code.append(line)
    lines.append(_without_spaces("\n".join(code)))
    return "\n".join(line for line in lines if line)


def _without_spaces(code: str) -> str:
    stripped = code.strip()

    def shorter(found: re.Match[str]) -> str:
        if found["literal"]:
            return found["literal"]
        before, after = stripped[found.start() - 1], stripped[found.end()]
        if before in _PUNCTUATION or after in _PUNCTUATION:
            return ""
        return " " if _is_word(before) == _is_word(after) else ""  # `a + +b` is not `a ++b`

    return _SPACE.sub(shorter, stripped)


def _is_word(sign: str) -> bool:
    return sign.isalnum() or sign in "_\"'"
