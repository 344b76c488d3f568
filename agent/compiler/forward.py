"""What a candidate must know of the reference's `forward`: read off its syntax tree, never by importing it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from agent.errors import ProposalFailed


@dataclass(frozen=True)
class Parameter:
    """A parameter of the reference's `forward`; `default` is its text, empty when there is none."""

    name: str
    default: str


def forward_parameters(section: str, root: str = "Model") -> list[Parameter]:
    """The parameters of the `forward` of class `root`.

    Raises:
        ProposalFailed: if there is no such method or it takes a variable number of arguments.
    """
    tree = ast.parse(section)
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == root]
    methods = [node for model in models for node in model.body if isinstance(node, ast.FunctionDef)]
    forward = next((node for node in methods if node.name == "forward"), None)
    if forward is None:
        raise ProposalFailed(f"class {root} has no forward of its own")
    spec = forward.args
    if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
        raise ProposalFailed("forward takes a variable number of arguments")
    names = [argument.arg for argument in spec.args][1:]
    defaults = [""] * (len(names) - len(spec.defaults)) + [ast.unparse(node) for node in spec.defaults]
    return [
        Parameter(name, default)
        for name, default in zip(names, defaults[-len(names) :] if names else [], strict=True)
    ]


def without_docstring(text: str) -> str:
    """Module-level code without a leading docstring."""
    first = ast.parse(text).body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
        text = "\n".join(text.splitlines()[first.end_lineno :])
    return text.strip("\n")
