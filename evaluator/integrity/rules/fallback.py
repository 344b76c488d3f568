"""Kernels that fail silently: `except` branches that compute the answer with something else (E54)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at
from evaluator.integrity.source import Source

#: Lookup errors. Catching them is normal Python, not a fallback.
_LOOKUPS = {"IndexError", "KeyError", "StopIteration", "AttributeError", "queue.Empty"}
_BUILDS = ("load_inline", "_compile_kernel", "compile", "CDLL", "load_library")


def _try_fallback(source: Source) -> Iterator[Hit]:
    builds = {id(node) for name, node in source.calls if name.rpartition(".")[2] in _BUILDS}
    for node in source.nodes:
        if not isinstance(node, ast.Try):
            continue
        if not source.runs(node) and not any(id(part) in builds for part in _calls_in(node.body)):
            continue
        for handler in node.handlers:
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {source.dotted(one) for one in types if one is not None}
            if names and names <= _LOOKUPS:
                continue
            if not isinstance(handler.body[-1], ast.Raise):
                yield at(handler, f"except {', '.join(sorted(names)) or 'anything'}: goes on without it")


def _calls_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


RULES = (
    Rule(
        "uses_try_fallback",
        "warning",
        "when its kernel cannot be built or called, it silently continues with something else",
        _try_fallback,
    ),
)
