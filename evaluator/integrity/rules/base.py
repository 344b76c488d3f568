"""What a rule is: a name, how loud it is, one sentence, and a function that finds its places in a source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from evaluator.integrity.source import Source


@dataclass(frozen=True)
class Hit:
    """One place: its line in the candidate and what stands there, a few words."""

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


def calls_to(source: Source, names: frozenset[str], *, runtime_only: bool = False) -> Iterator[Hit]:
    """Calls whose full dotted name is one of some names."""
    for name, node in source.calls:
        if name in names and (not runtime_only or source.runs(node)):
            yield at(node, f"{name}()")


def method_calls(source: Source, names: frozenset[str], *, runtime_only: bool = False) -> Iterator[Hit]:
    """Calls of methods by their last name, whatever they are called on."""
    for _, node in source.calls:
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            if not runtime_only or source.runs(node):
                yield at(node, f".{node.func.attr}()")


def in_native(source: Source, pattern: str, *, literals: bool = False) -> Iterator[Hit]:
    """Places in C++ and CUDA strings that match a regular expression."""
    import re

    compiled = re.compile(pattern)
    for text in source.native:
        code = text.with_literals if literals else text.code
        for match in compiled.finditer(code):
            yield Hit(text.line + code.count("\n", 0, match.start()), match[0].strip()[:60])
            break
