"""Writes a candidate file: the user's reference, a kernel of the library, and the class that joins them.

`ModelNew` is a subclass of the user's own `Model`, so that construction and the names of its weights are the reference's by
definition, and where the kernel does not apply, the reference runs.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

from agent.library.catalog import Exemplar
from agent.library.exemplars.cpu.source import cpp_source
from agent.library.find import Match

_NOT_CARRIED = (
    "get_inputs",
    "get_init_inputs",
    "DIMS",
    "DIRECTION",
    "TRAINING",
    "PRECISION",
    "redraw",
    "oracle",
)
_RULE = "# " + "-" * 60 + " "
MAX_SOURCE_BYTES = 400_000


class CannotAssemble(ValueError):
    """The reference cannot be carried inside a candidate; the message says why."""


def assemble(match: Match, device: str, reference_source: str) -> str:
    """The text of the candidate.

    Raises:
        CannotAssemble: the reference does not parse, or uses a name that the kernel needs.
    """
    reference = _Text.of(reference_source, "the reference")
    parts = [
        _Text.of(path.read_text(encoding="utf-8"), path.name)
        for path in _kernel_files(match.exemplar, device)
    ]
    ours = set[str]().union(*(part.names() for part in parts), {"ModelNew"})
    brought = {name: line for part in parts for name, line in part.imported().items()}
    theirs = reference.imported()
    taken = (reference.names() & (ours | set(brought))) | (set(theirs) & ours)
    taken |= {name for name in theirs if name in brought and brought[name] != theirs[name]}
    if taken:
        raise CannotAssemble(f"the reference already uses the names {sorted(taken)}")
    kernel = parts[-1]
    sections = [
        f'"""{kernel.docstring()}"""',
        "\n".join(_merged([*parts, reference])),
        f"{_RULE}the reference, as it was given",
        reference.body(_NOT_CARRIED),
        f"{_RULE}the kernel",
        *(part.body(()) for part in parts),
        f"{_RULE}the module",
        _module(match, checked=f"library_{match.exemplar.name}_checked" in kernel.names()),
    ]
    return "\n\n\n".join(section.strip("\n") for section in sections if section.strip()) + "\n"


def _kernel_files(exemplar: Exemplar, device: str) -> list[Path]:
    path = exemplar.path(device)
    return [path.with_name("runtime.py"), path]


def _module(match: Match, *, checked: bool) -> str:
    """The class that calls the kernel with the module's own tensors.

    Args:
        match: what was recognized, and where its tensors are.
        checked: whether the kernel also comes without the checks that a bundle's dispatcher has made already.
    """
    names = list(match.arguments)
    if any(keyword.iskeyword(name) or name in ("self", "extra", "named") for name in names):
        raise CannotAssemble("an argument of forward has a name that cannot be used")
    function = f"library_{match.exemplar.name}"
    if function in names:
        raise CannotAssemble("an argument of forward is called like the kernel")
    values = []
    for role in match.exemplar.roles:
        if role in match.numbers:
            values.append(repr(float(match.numbers[role])))
            continue
        where, name = match.tensors[role]
        values.append(names[int(name)] if where == "input" else _lookup(where, name))
    if match.exemplar.output == "row":
        values.append(f"keepdim={match.keeps_dim}")
    # A dispatcher looks at inputs; only of a column do the kernels expect that it is a parameter.
    checked &= all(
        match.tensors[role][0] == "input" for role, kind in match.exemplar.roles.items() if kind == "full"
    )
    listed = ", ".join(names)
    extra = ", *extra, **named" * match.open_ended
    lines = ["class ModelNew(Model):"]
    for method, suffix in (("forward", ""), ("forward_checked", "_checked"))[: 1 + checked]:
        call = f"{function}{suffix}({', '.join(values)})"
        lines += [
            f"    def {method}(self, {listed}{extra}):",
            f"        y = {'None if extra or named else ' * match.open_ended}{call}",
            f"        return super().forward({listed}{extra}) if y is None else y",
            "",
        ]
    return "\n".join(lines)


def _lookup(where: str, path: str) -> str:
    """A parameter or buffer by its path. Through the dictionaries: attribute access on a module costs 1 to 2 us each."""
    *parents, leaf = path.split(".")
    table = "_parameters" if where == "parameter" else "_buffers"
    if not all(re.fullmatch(r"\w+", name, re.ASCII) for name in (*parents, leaf)):
        raise CannotAssemble("a parameter has a name that cannot be written")
    steps = "".join(f"._modules[{name!r}]" for name in parents)
    return f"self{steps}.{table}[{leaf!r}]"


class _Text:
    """A source file that can be cut at top-level statements."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.lines = re.split(r"\r\n|\r|\n", source)  # as Python counts lines
        self.tree = tree

    @classmethod
    def of(cls, source: str, title: str) -> _Text:
        if len(source) > MAX_SOURCE_BYTES:
            raise CannotAssemble(f"{title} is too long")
        try:
            return cls(source, ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotAssemble(f"{title} does not parse: {error}") from error

    def docstring(self) -> str:
        return (ast.get_docstring(self.tree, clean=True) or "").replace("\\", "\\\\").replace(
            '"""', "'''"
        ) + "\n"

    def names(self) -> set[str]:
        """What the file defines at its top level, imports apart."""
        found = set()
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif not isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {
                    name.id
                    for name in ast.walk(node)
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                }
        return found

    def imported(self) -> dict[str, str]:
        """The names that imports bind, each with an import of its own that binds it; imports of this project are left out."""
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                prefix = "import"
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                prefix = f"from {node.module} import"
            else:
                continue
            for alias in node.names:
                module = node.module if isinstance(node, ast.ImportFrom) else alias.name
                if (module or "").split(".")[0] in ("agent", "kernelbench_tasks"):
                    continue
                renamed = f" as {alias.asname}" if alias.asname else ""
                found[alias.asname or alias.name] = f"{prefix} {alias.name}{renamed}"
        return found

    def body(self, left_out: Sequence[str]) -> str:
        """The text without docstring, imports, the main block and the named definitions, with its comments."""
        kept, start = [], 0
        for position, node in enumerate(self.tree.body):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if first <= start:
                continue  # a second statement on a line that is already there
            leading = self.lines[start : first - 1]  # comments above a statement belong to it
            start = node.end_lineno or node.lineno
            is_docstring = position == 0 and ast.get_docstring(self.tree) is not None
            if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)) or _is_main_block(node):
                continue
            if _defined(node) & set(left_out):
                continue
            source = _cpp_literal(node)
            kept += [*leading, *([source] if source else self.lines[first - 1 : start])]
        return "\n".join(kept)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _cpp_literal(node: ast.stmt) -> str | None:
    """`CPP_SOURCE = cpp_source("x.cpp")` of an exemplar, with the text itself in place of the call."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Call(func=ast.Name(id="cpp_source"), args=[ast.Constant(value=str() as file_name)]),
        ):
            return f'{target} = r"""\n{cpp_source(file_name)}"""'
    return None


def _merged(parts: Sequence[_Text]) -> list[str]:
    """All imports once; those of the future only if the reference asks for them, and first, as Python demands."""
    *ours, reference = (list(part.imported().values()) for part in parts)
    future = [line for line in reference if line.startswith("from __future__")]
    lines = {
        line for listed in (*ours, reference) for line in listed if not line.startswith("from __future__")
    }
    return future + sorted(lines, key=lambda line: (not line.startswith("import"), line))
