"""Finds the candidate file in a model's reply. The reply is data: it is searched and parsed, nothing more."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*$")
_MAX_SOURCE_CHARACTERS = 200_000
_MOST_SPANS = 12
_THOUGHT_END = "</think>"
_PYTHON = frozenset({"", "python", "py", "python3"})


@dataclass(frozen=True)
class Extraction:
    """What was found.

    Attributes:
        source: the candidate file, or None.
        problem: "" with a source; else "empty", "refusal", "truncated", "no_code", "no_class", "syntax" or "too_long".
        blocks: how many complete code blocks the reply has.
    """

    source: str | None
    problem: str
    blocks: int


def extract(text: str, finish: str = "stop") -> Extraction:
    """The candidate in a reply.

    Of several blocks the last one that defines ModelNew and parses is taken: models correct themselves as they go. When
    none does alone, all Python blocks together are tried, for replies that give imports and class apart, and then from an
    opening fence to later closing ones, for files that hold fences themselves.

    Args:
        text: the reply.
        finish: why the model stopped, see `agent.providers.base.Reply`.
    """
    if finish in ("refusal", "content_filter"):
        return Extraction(None, "refusal", 0)
    if finish == "too_long":
        return Extraction(None, "too_long", 0)
    answer = text.rpartition(_THOUGHT_END)[2]
    if not answer.strip():
        return Extraction(None, "truncated" if finish == "length" else "empty", 0)
    blocks, cut_off = _blocks(answer)
    tries = [block for block in reversed(blocks) if "class ModelNew" in block]
    if not tries and sum("class ModelNew" in block for block in blocks) == 0 and not blocks and not cut_off:
        tries = [answer] if "class ModelNew" in answer else []
    if tries and len(blocks) > 1:
        tries.append("\n\n".join(blocks))
    for source in itertools.chain(tries, itertools.islice(_spans(answer), _MOST_SPANS)):
        if len(source) > _MAX_SOURCE_CHARACTERS:
            return Extraction(None, "too_long", len(blocks))
        if _parses(source):
            return Extraction(source.strip("\n") + "\n", "", len(blocks))
    if cut_off or finish == "length":
        return Extraction(None, "truncated", len(blocks))
    if tries:
        return Extraction(None, "syntax", len(blocks))
    return Extraction(None, "no_class" if blocks else "no_code", len(blocks))


def _blocks(text: str) -> tuple[list[str], bool]:
    """Complete Python (or unmarked) code blocks, and whether the last block was never closed."""
    found: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    # Not `splitlines`: a form feed or a Unicode separator is no end of a line in Python.
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines = fence, []
        elif fence and not fence["language"] and fence["mark"].startswith(opened["mark"]):
            if opened["language"].lower() in _PYTHON:
                found.append(textwrap.dedent("\n".join(lines)) if opened["indent"] else "\n".join(lines))
            opened = None
        else:
            lines.append(line)
    return found, opened is not None


def _spans(text: str) -> Iterator[str]:
    """From a fence that opens Python to one that closes it, the last opening one and the last closing one first."""
    lines = text.replace("\r\n", "\n").split("\n")
    fences = [(place, fence) for place, line in enumerate(lines) if (fence := _FENCE.match(line))]
    for number, (begin, opened) in enumerate(reversed(fences[-_MOST_SPANS:])):
        if opened["language"].lower() not in _PYTHON:
            continue
        for end, closed in list(reversed(fences))[:number]:
            source = "\n".join(lines[begin + 1 : end])
            if (
                closed["language"]
                or not closed["mark"].startswith(opened["mark"])
                or len(source) > _MAX_SOURCE_CHARACTERS
            ):
                continue
            if "class ModelNew" in source:
                yield source


def _parses(source: str) -> bool:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body)
