"""Reads the signature of the reference's `forward` from its syntax tree, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set
from dataclasses import dataclass

from agent.bundle.sections import Section, cut, rename_collisions
from agent.errors import AssemblyError, ProposalFailed


@dataclass(frozen=True)
class Forward:
    """The parameters of a `forward`: their names, and their text after `self` with defaults."""

    names: tuple[str, ...]
    signature: str

    @property
    def call(self) -> str:
        """The names as arguments."""
        return ", ".join(self.names)

    @property
    def items(self) -> str:
        """The names as a tuple."""
        return f"({self.call}{',' * (len(self.names) == 1)})"


def cut_apart(source: str, own: Set[str], root: str = "Model") -> Section:
    """Cut a file down to what class `root` needs, for a candidate file that adds the names `own` to it.

    What the file calls by one of these names gets another one. A module imported under its own name means the same in both.

    Raises:
        ProposalFailed: if there is no such class, or a name cannot be changed.
    """
    try:
        return rename_collisions(
            cut(source, root), {name: name for name in own - {root}}, "_of_reference", {}
        )
    except AssemblyError as error:
        raise ProposalFailed(str(error)) from error


def forward_of(section: str, root: str = "Model") -> Forward:
    """The `forward` of class `root`.

    Raises:
        ProposalFailed: if there is no such method or it takes a variable number of arguments.
    """
    models = [
        node for node in ast.parse(section).body if isinstance(node, ast.ClassDef) and node.name == root
    ]
    methods = [node for model in models for node in model.body if isinstance(node, ast.FunctionDef)]
    forward = next((node for node in methods if node.name == "forward"), None)
    if forward is None:
        raise ProposalFailed(f"class {root} has no forward of its own")
    spec = forward.args
    if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
        raise ProposalFailed("forward takes a variable number of arguments")
    spec.args = spec.args[1:]
    for argument in spec.args:
        argument.annotation = None
    return Forward(tuple(argument.arg for argument in spec.args), ast.unparse(spec))


def without_docstring(text: str) -> str:
    """Module-level code without a leading docstring."""
    first = ast.parse(text).body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
        text = "\n".join(text.splitlines()[first.end_lineno :])
    return text.strip("\n")


def titled(title: str, words: str) -> str:
    """Format a file's docstring."""
    return f'"""{" ".join(title.split())[:60]}{words}"""'.replace("\\", "")


def joined(parts: Iterable[str]) -> str:
    """Join parts of a file with two blank lines between them.

    Raises:
        ProposalFailed: the result does not parse.
    """
    text = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ProposalFailed(f"the parts do not make one file: {error}") from error
    return text
