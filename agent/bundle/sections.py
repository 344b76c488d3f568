"""Combines several source files into one module without name collisions.

optimized.py must be one readable file that holds the reference and every member of the portfolio. They stay ordinary
module-level code without exec or nested functions, which keeps Triton, `global` and `inspect.getsource` working. If two
sections bind a name to different things, the later section's name is changed.

This module works on text and syntax trees only; it never runs the code it reads.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.bundle.renaming import rename
from agent.errors import AssemblyError

# Parts of a task file that only the evaluator needs.
_TASK_ONLY = frozenset(
    {
        "get_inputs",
        "get_init_inputs",
        "DIMS",
        "TRAFFIC",
        "DIRECTION",
        "TRAINING",
        "PRECISION",
        "redraw",
        "oracle",
    }
)
_PROJECT = "kernelbench_tasks"


@dataclass(frozen=True)
class Section:
    """One source file, cut down to what `root` needs.

    Attributes:
        text: module-level code without `from __future__` lines.
        names: names bound at module level; each maps to its dotted path if imported, else to None.
        futures: names from its `from __future__` imports.
    """

    text: str
    names: Mapping[str, str | None]
    futures: frozenset[str]


def cut(source: str, root: str) -> Section:
    """Keep what the class `root` needs, in order and with its comments.

    Drops task-only functions and constants, imports of the project, `if __name__ == "__main__"` and unreachable
    definitions. Keeps statements with side effects.

    Raises:
        AssemblyError: if the source does not parse, does not define `root`, or needs the project at run time.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise AssemblyError(f"the source with class {root} does not parse: {error}") from error
    statements = tree.body
    if not any(root in bound_names(statement) for statement in statements):
        raise AssemblyError(f"the source does not define class {root}")
    needed = _reachable(statements, root)
    kept = [statement for statement in statements if _keep(statement, needed)]
    for statement in kept:
        if _imports_project(statement):
            raise AssemblyError(f"class {root} uses {_PROJECT} at run time; a bundle must run without it")
    names: dict[str, str | None] = {}
    for statement in kept:
        names.update(bound_names(statement))
    futures = frozenset(
        alias.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        for alias in statement.names
    )
    return Section(text=_lines_of(source, statements, kept), names=names, futures=futures)


def with_types_of(reference: Section, section: Section) -> Section:
    """Drop named tuples that the reference defines identically, to make every member return the reference's type."""
    theirs = {
        ast.dump(statement) for statement in ast.parse(reference.text).body if _is_named_tuple(statement)
    }
    statements = ast.parse(section.text).body
    kept = [statement for statement in statements if ast.dump(statement) not in theirs]
    if len(kept) == len(statements):
        return section
    left_out = {name for statement in statements if statement not in kept for name in bound_names(statement)}
    names = {name: path for name, path in section.names.items() if name not in left_out}
    return Section(_lines_of(section.text, statements, kept), names, section.futures)


def _is_named_tuple(statement: ast.stmt) -> bool:
    """Whether a statement defines a named tuple, as a class or by a call."""
    if isinstance(statement, ast.ClassDef):
        makers = statement.bases
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        makers = [statement.value.func]
    else:
        return False
    words = {ast.unparse(maker).rpartition(".")[2] for maker in makers}
    return not words.isdisjoint({"NamedTuple", "namedtuple"})


def rename_collisions(
    section: Section, taken: Mapping[str, str | None], suffix: str, also: Mapping[str, str]
) -> Section:
    """Rename names that `section` binds differently from `taken`; `also` maps further names to new ones.

    Raises:
        AssemblyError: if a colliding name cannot be renamed.
    """
    mapping = dict(also)
    for name, path in section.names.items():
        if name in mapping or name not in taken:
            continue
        if path is None or path != taken[name]:
            mapping[name] = _free(f"{name}{suffix}", {*taken, *section.names, *mapping.values()})
    names = {mapping.get(name, name): path for name, path in section.names.items()}
    return Section(text=rename(section.text, mapping), names=names, futures=section.futures)


def indented(text: str, spaces: int = 4) -> str:
    """Indent code, but not the inside of multi-line strings."""
    inside: set[int] = set()
    depth: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif tokenize.tok_name[token.type] == "FSTRING_START":  # Python 3.12 splits f-strings into tokens
            depth.append(token.start[0])
        elif tokenize.tok_name[token.type] == "FSTRING_END":
            inside.update(range(depth.pop() + 1, token.end[0] + 1))
    pad = " " * spaces
    lines = text.splitlines()
    return "\n".join(
        line if number in inside or not line.strip() else pad + line
        for number, line in enumerate(lines, start=1)
    )


def _keep(statement: ast.stmt, needed: frozenset[str]) -> bool:
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return False
    if is_main_guard(statement):
        return False
    bound = bound_names(statement)
    if any(name in needed for name in bound):
        return True
    if _imports_project(statement) or (bound and set(bound) <= _TASK_ONLY):
        return False
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return bool(statement.decorator_list)  # a decorator may register something
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and bound:
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return True


def _reachable(statements: Iterable[ast.stmt], root: str) -> frozenset[str]:
    """Names that `root` or a statement with side effects may look up, transitively."""
    users: dict[str, set[str]] = {}
    wanted = [root]
    for statement in statements:
        used = used_names(statement)
        bound = bound_names(statement)
        for name in bound:
            users.setdefault(name, set()).update(used)
        if (not bound and not is_main_guard(statement)) or _keep(statement, frozenset()):
            wanted.extend(used)
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted.extend(users.get(name, ()))
    return frozenset(found)


def used_names(statement: ast.AST) -> set[str]:
    """Names that a statement or a module mentions, including inside functions that it defines."""
    used: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            used.update(node.names)
    return used


def bound_names(statement: ast.stmt) -> dict[str, str | None]:
    """Names that a module-level statement binds, with the dotted path of imported names and None for others."""
    bound: dict[str, str | None] = {}
    for node in _walk_same_scope(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound[node.name] = None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name != "*":
                    bound[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            bound[node.id] = None
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound[node.name] = None
    return bound


def _walk_same_scope(node: ast.AST) -> Iterable[ast.AST]:
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk_same_scope(child)


def is_main_guard(statement: ast.stmt) -> bool:
    """Whether a statement is an `if` on `__name__`, as in `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _imports_project(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").partition(".")[0] == _PROJECT
    if isinstance(statement, ast.Import):
        return any(alias.name.partition(".")[0] == _PROJECT for alias in statement.names)
    return False


def _lines_of(source: str, statements: list[ast.stmt], kept: list[ast.stmt]) -> str:
    """The lines of the kept statements, each with the comments above it."""
    lines = source.splitlines()
    keep = {id(statement) for statement in kept}
    pieces: list[str] = []
    start = 0
    index = 0
    while index < len(statements):
        group = [statements[index]]  # statements that share a line (a = 1; b = 2) stay together
        while index + 1 < len(statements) and _first_line(statements[index + 1]) <= (
            group[-1].end_lineno or 0
        ):
            index += 1
            group.append(statements[index])
        end = group[-1].end_lineno or len(lines)
        if any(id(statement) in keep for statement in group):
            pieces.extend(lines[start:end])
        start = end
        index += 1
    return "\n".join(pieces).strip("\n") + "\n"


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _free(name: str, taken: set[str]) -> str:
    while name in taken or keyword.iskeyword(name):
        name += "_"
    return name
