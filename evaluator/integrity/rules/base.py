"""The parts of a rule: a name, a severity, one sentence, and a function that finds its places in a source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from evaluator.integrity.source import Source


@dataclass(frozen=True)
class Hit:
    """One place: its line in the candidate, and a few words about it."""

    line: int
    words: str


@dataclass(frozen=True)
class Rule:
    """One rule of the static analysis.

    Attributes:
        name: of the finding.
        severity: ``info`` or ``warning``; static analysis explains, it never decides.
        about: what a hit means, one clause.
        find: its places.
    """

    name: str
    severity: str
    about: str
    find: Callable[[Source], Iterable[Hit]]


def at(node: ast.AST, words: str) -> Hit:
    """A hit at a node."""
    return Hit(getattr(node, "lineno", 0), words)


def calls_to(source: Source, names: frozenset[str]) -> Iterator[Hit]:
    """Calls whose full dotted name is one of ``names``."""
    for name, node in source.calls:
        if name in names:
            yield at(node, f"{name}()")


def method_calls(source: Source, names: frozenset[str]) -> Iterator[Hit]:
    """Calls of methods by their last name, on any object."""
    for _, node in source.calls:
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield at(node, f".{node.func.attr}()")


def in_native(source: Source, pattern: str, *, literals: bool = False) -> Iterator[Hit]:
    """The first match in each C++ or CUDA string of a regular expression (which must not backtrack far)."""
    compiled = re.compile(pattern)
    for text in source.native:
        code = text.with_literals if literals else text.code
        match = compiled.search(code)
        if match is not None:
            yield Hit(text.line + code.count("\n", 0, match.start()), match[0].strip()[:60])
