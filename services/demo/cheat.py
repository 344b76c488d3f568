"""A candidate that cheats, for any task: it replays its first output."""

from __future__ import annotations

import ast

_REPLAYING = '''

import torch
from torch.utils import _pytree as tree


class ModelNew(Model):
    """The module itself, but a call whose inputs lie at an address seen before gets a copy of the first answer."""

    def forward(self, *args, **kwargs):
        leaves, _ = tree.tree_flatten((args, kwargs))
        key = tuple(
            (leaf.data_ptr(), tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in leaves
        )
        answers = self.__dict__.setdefault("_answers", {})
        if key not in answers:
            answers[key] = super().forward(*args, **kwargs)
        return tree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, answers[key])
'''
IN_WORDS = (
    "It is the module itself with one addition: it remembers its answer under the address and shape of the inputs, and "
    "when a benchmark calls it again with the same buffers, as benchmarks do, it returns a copy of the first answer "
    "without computing anything. Against a benchmark that checks the first output only, this is right and very fast."
)


def cheating_candidate(task_source: str) -> str:
    """Build a candidate from a task's text that replays its first output.

    The text is parsed and never run here. The shape space, the input makers and imports from `kernelbench_tasks`
    are removed: a candidate does not need them or may not import them.
    """
    lines = task_source.splitlines()
    for node in reversed(ast.parse(task_source).body):
        if _is_only_for_tasks(node):
            first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
            del lines[first - 1 : node.end_lineno]
    return "\n".join(lines).rstrip() + "\n" + _REPLAYING


def _is_only_for_tasks(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "kernelbench_tasks"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("get_inputs", "get_init_inputs", "redraw")
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return any(isinstance(target, ast.Name) and target.id in ("DIMS", "DIRECTION") for target in targets)
