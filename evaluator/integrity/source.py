"""A candidate's source as the rules see it: a flat index of its syntax tree, so that each rule loops over one
list.

Comments and docstrings are not included: a candidate's claims about itself never matter.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

MAX_SOURCE_BYTES = 1 << 19
MAX_NODES = 150_000
#: Decorators that make a function a kernel, by their full names: one language of kernels in Python per line.
KERNEL_DECORATORS = (
    "triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit", "triton.experimental.gluon.jit",
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: What a Python string must contain to count as C++ or CUDA.
_MARKS = re.compile(r"__global__|#\s*include\b|\btorch::Tensor\b|\bat::\w|extern\s+\"C\"|\bTORCH_LIBRARY\b")
#: Comments, then string and character literals. Raw strings are left alone (kernels have none).
_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
#: A kernel's name is before the first parenthesis after `__global__`, except that of launch bounds.
_KERNEL = re.compile(
    r"__global__\s+(?:[\w:]+\s+){0,4}?(?:__launch_bounds__\s{0,4}\([^)]{0,80}\)\s*(?:[\w:]+\s+){0,3}?)?(?!__launch_bounds__)(\w{1,120})\s{0,4}\("
)


class Unreadable(ValueError):
    """The source is not analyzed; the message says why."""


@dataclass(frozen=True)
class NativeText:
    """A string that contains C++ or CUDA: its line in the candidate, without comments, with and without literals."""

    line: int
    code: str
    with_literals: str


class Source:
    """The index of one file.

    Args:
        text: the candidate's file, any text at all.

    Raises:
        Unreadable: too long, too deep, or not Python.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_SOURCE_BYTES:
            raise Unreadable(f"the file is longer than {MAX_SOURCE_BYTES >> 10} KiB")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(f"the file does not parse ({type(error).__name__})") from None
        self.nodes: list[ast.AST] = []
        self._parents: dict[ast.AST, ast.AST] = {}
        self._functions: dict[ast.AST, Function | None] = {}
        self.calls: list[tuple[str, ast.Call]] = []
        self.functions: list[Function] = []
        self.classes: dict[str, ast.ClassDef] = {}
        self._aliases: dict[str, str] = {}
        self._index(tree)
        self.native = [
            NativeText(node.lineno, without_noise(node.value), without_noise(node.value, literals=True))
            for node in self.strings()
            if looks_native(node.value)
        ]
        self.calls = [(self.dotted(node.func), node) for node in self.nodes if isinstance(node, ast.Call)]
        self.runtime = self._runtime()

    def _index(self, tree: ast.Module) -> None:
        stack: list[tuple[ast.AST, Function | None]] = [(tree, None)]
        while stack:
            node, function = stack.pop()
            self.nodes.append(node)
            if len(self.nodes) > MAX_NODES:
                raise Unreadable(f"the file has more than {MAX_NODES} syntax nodes")
            self._functions[node] = function
            inside = function
            if isinstance(node, _FUNCTIONS):
                self.functions.append(node)
                inside = node
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._aliases[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            for child in reversed(list(ast.iter_child_nodes(node))):
                self._parents[child] = node
                stack.append((child, inside))

    # -- relations ---------------------------------------------------------------------------------------------

    def dotted(self, node: ast.AST) -> str:
        """The full dotted name of an expression with import aliases resolved; empty if it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(["", *reversed(parts)]) if parts else ""
        return ".".join([self._aliases.get(node.id, node.id), *reversed(parts)])

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The parent of a node."""
        return self._parents.get(node)

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        return self._functions.get(node)

    def runs(self, node: ast.AST) -> bool:
        """Whether a node is in a function that a call of ``ModelNew`` reaches."""
        return self._functions.get(node) in self.runtime

    def imports(self, *modules: str) -> Iterator[ast.Import | ast.ImportFrom]:
        """Statements that import one of some modules, or a part of it."""
        for node in self.nodes:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(name == module or name.startswith(f"{module}.") for name in names for module in modules):
                assert isinstance(node, (ast.Import, ast.ImportFrom))
                yield node

    def strings(self) -> Iterator[_Text]:
        """String constants that are not docstrings."""
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if not isinstance(self._parents.get(node), ast.Expr):
                    yield node  # type: ignore[misc]

    def assignments(self) -> Iterator[tuple[ast.expr, ast.AST]]:
        """Every target of an assignment, with its statement; tuples are split."""
        for node in self.nodes:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = list(node.targets)
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                targets = [node.target]
            for target in targets:
                for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    yield one, node

    # -- kernels -----------------------------------------------------------------------------------------------

    def is_kernel(self, function: Function) -> bool:
        """Whether a decorator makes this function a kernel."""
        return any(
            self.dotted(mark.func if isinstance(mark, ast.Call) else mark) in KERNEL_DECORATORS
            for mark in function.decorator_list
        )

    def jit_names(self) -> list[str]:
        """Names of the functions that are kernels."""
        return list(dict.fromkeys(f.name for f in self.functions if self.is_kernel(f)))

    # -- what a call of the module reaches -----------------------------------------------------------------------

    def _runtime(self) -> set[Function | None]:
        """``forward`` of ``ModelNew`` (or of its bases in this file) and what it calls by name in this file."""
        by_name: dict[str, list[Function]] = {}
        for function in self.functions:
            by_name.setdefault(function.name, []).append(function)
        called: dict[Function | None, set[str]] = {}
        for name, node in self.calls:
            last = name.rpartition(".")[2]
            if last in by_name:
                called.setdefault(self._functions[node], set()).add(last)
        inner: dict[Function | None, list[Function]] = {}
        for function in self.functions:
            inner.setdefault(self._functions[function], []).append(function)
        own = self._lineage("ModelNew")
        todo: list[Function] = [f for f in by_name.get("forward", []) if self._parents.get(f) in own]
        reached: set[Function | None] = set()
        # A super().forward() names the reference's own code, which is not the candidate's.
        followed = {"forward"}
        while todo:
            function = todo.pop()
            if function in reached:
                continue
            reached.add(function)
            names = called.get(function, set()) - followed
            followed |= names
            todo += [f for name in names for f in by_name[name]]
            todo += inner.get(function, [])
        return reached

    def _lineage(self, name: str) -> set[ast.AST | None]:
        """The named class, plus its bases in this file if it has no ``forward`` of its own."""
        found: set[ast.AST | None] = set()
        todo = [name]
        while todo:
            one = self.classes.get(todo.pop())
            if one is None or one in found:
                continue
            found.add(one)
            if not any(isinstance(part, _FUNCTIONS) and part.name == "forward" for part in one.body):
                todo += [base.id for base in one.bases if isinstance(base, ast.Name)]
        return found


class _Text(ast.Constant):
    """A constant that holds a string; a type only."""

    value: str


# -- C++ and CUDA in strings -----------------------------------------------------------------------------------


def looks_native(text: str) -> bool:
    """Whether a Python string looks like C++ or CUDA."""
    return _MARKS.search(text) is not None


def without_noise(text: str, *, literals: bool = False) -> str:
    """The source with comments blanked, line numbers unchanged; string literals too unless ``literals`` keeps
    them.
    """

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] != "/" and literals:
            return found
        return "\n" * found.count("\n") + " "

    return _NOISE.sub(blank, text)


def kernel_names(text: str) -> list[str]:
    """Names of the `__global__` functions that a source defines or declares."""
    return list(dict.fromkeys(_KERNEL.findall(without_noise(text))))
