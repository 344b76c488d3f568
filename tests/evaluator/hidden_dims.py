"""A task of the catalogue with its `DIMS` hidden, and what inference finds compared with what was declared."""

from __future__ import annotations

import ast
from typing import Any

from evaluator.shapes.inference.result import Inferred
from evaluator.shapes.space import ChoiceDim, IntegerDim
from kernelbench_tasks import Choice, Dim


def hidden(source: str, form: str) -> str:
    """A task's file without `DIMS`: sizes stay keyword `parameters`, or become `constants` of the file (KernelBench's form)."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if "DIMS" not in _bound(node)]
    if form == "parameters":
        return ast.unparse(tree)
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("get_inputs", "get_init_inputs"):
            names = (argument.arg for argument in node.args.args)
            constants |= zip(names, node.args.defaults, strict=True)
            node.args = ast.arguments([], [], None, [], [], None, [])
    place = next(index for index, node in enumerate(tree.body) if isinstance(node, ast.ClassDef))
    tree.body[place:place] = [
        ast.Assign([ast.Name(name, ast.Store())], value) for name, value in constants.items()
    ]
    return ast.unparse(ast.fix_missing_locations(tree))


def declared(source: str) -> dict[str, Dim | Choice]:
    """What a file of the catalogue declares."""
    node = next(node for node in ast.parse(source).body if "DIMS" in _bound(node))
    assert isinstance(node, ast.Assign)
    dims: dict[str, Dim | Choice] = eval(ast.unparse(node.value), {"Dim": Dim, "Choice": Choice})
    return dims


def _bound(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def compare(dims: dict[str, Any], inferred: Inferred) -> dict[str, dict[str, Any]]:
    """For each declared dimension, and each axis that was not declared: `same`, `wider`, or in what it differs."""
    answer: dict[str, dict[str, Any]] = {}
    owner = {name: axis for axis, names in inferred.tied.items() for name in names}
    for name, dim in dims.items():
        found = inferred.space.get(owner.get(name, ""))
        if isinstance(dim, Choice):
            # What does not vary has one value, which is what a choice of one declares.
            want, have = (
                set(dim.values),
                set(found.values if isinstance(found, ChoiceDim) else (dim.default,)),
            )
            result = "same" if have == want else "wider" if have > want else "narrower"
        elif not isinstance(found, IntegerDim):
            result = "not an axis"
        elif any(other != name and other in dims for other in inferred.tied[owner[name]]):
            result = "tied"
        elif found.multiple_of == dim.multiple_of:
            result = "same"
        else:
            result = "wider" if dim.multiple_of % found.multiple_of == 0 else "narrower"
        answer[name] = {
            "result": result,
            "declared": dim,
            "inferred": found,
            "reason": inferred.fixed.get(name),
        }
    for axis in inferred.space:
        if not any(name in dims for name in inferred.tied[axis]):
            answer[axis] = {"result": "extra"}
    return answer
