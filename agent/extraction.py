"""Extracts the candidate file from a model's reply. The reply is only searched and parsed, never run."""

from __future__ import annotations

import ast
import io
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from agent.bundle.renaming import rename
from agent.bundle.sections import bound_names
from agent.errors import AssemblyError
from agent.folding import BEGIN, END, PLACE
from agent.kernels.writing import kernels

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*$")
_MAX_SOURCE_CHARACTERS = 200_000
_MOST_SPANS = 12
_THOUGHT_END = "</think>"
_LIBRARY = "library_"
_PYTHON = frozenset({"", "python", "py", "python3"})


@dataclass(frozen=True)
class Extraction:
    """The result of a search.

    Attributes:
        source: the candidate file, or None.
        problem: "" if there is a source; else "empty", "refusal", "truncated", "no_code", "no_class", "syntax" or
            "too_long".
    """

    source: str | None
    problem: str


def extract(text: str, finish: str = "stop") -> Extraction:
    """Extract the candidate from a reply.

    Takes the last block that defines ModelNew and parses, since models correct themselves as they go. If no single block
    qualifies, tries all Python blocks joined, for replies that put imports and class into separate blocks, and then the
    spans from an opening fence to each later closing fence, for files that contain fences themselves.

    Args:
        text: the reply.
        finish: why the model stopped, see `agent.messages.Reply`.
    """
    if finish in ("refusal", "content_filter"):
        return Extraction(None, "refusal")
    if finish == "too_long":
        return Extraction(None, "too_long")
    answer = text.rpartition(_THOUGHT_END)[2]
    if not answer.strip():
        return Extraction(None, "truncated" if finish == "length" else "empty")
    blocks, cut_off = _blocks(answer)
    tries = [block for block in reversed(blocks) if "class ModelNew" in block]
    if not tries and sum("class ModelNew" in block for block in blocks) == 0 and not blocks and not cut_off:
        tries = [answer] if "class ModelNew" in answer else []
    if tries and len(blocks) > 1:
        tries.append("\n\n".join(blocks))
    for source in itertools.chain(tries, itertools.islice(_spans(answer), _MOST_SPANS)):
        if len(source) > _MAX_SOURCE_CHARACTERS:
            return Extraction(None, "too_long")
        if _parses(source):
            return Extraction(source.strip("\n") + "\n", "")
    if cut_off or finish == "length":
        return Extraction(None, "truncated")
    if tries:
        return Extraction(None, "syntax")
    return Extraction(None, "no_class" if blocks else "no_code")


def unfolded(answer: str) -> str:
    """A model's file with the library's text if it calls functions of the library that it does not define.

    The text goes before everything but a docstring and imports from the future. Names of the library that the file binds, or may
    bind, to something else are changed in the library's text.
    """
    # Not `splitlines`, as in `_blocks`.
    given = io.StringIO(answer, newline="")
    lines = [line for line in given if line.strip("\r\n") not in (BEGIN, END, PLACE)]
    answer = "".join(lines)
    if _LIBRARY not in answer:
        return answer
    try:
        tree = ast.parse(answer)
        theirs, ours = _bound(tree), _bound(ast.parse(kernels()))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        called = used & ours.keys() - theirs.keys()
        if not any(name.startswith(_LIBRARY) for name in called):
            return answer
        any_name = any(
            isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)
        )
        changed = {
            name: f"{name}_of_library"
            for name, path in ours.items()
            if (name in theirs and (path is None or path != theirs[name]))
            or (any_name and not name.startswith(_LIBRARY))
        }
        text = rename(kernels(called), changed)
        text = text if text.startswith(BEGIN) else f"{BEGIN}\n{text}{END}\n"  # it may lose comments
    except (SyntaxError, ValueError, RecursionError, MemoryError, AssemblyError):
        return answer  # the referee says what is wrong with it
    head = _head(tree)
    rest = "".join(lines[head:]).lstrip("\n")
    return "".join([*lines[:head], "\n" * bool(head), text, "\n\n", rest])


def _head(tree: ast.Module) -> int:
    """Lines of the docstring and of imports from the future, which must stay first."""
    head = 0
    for place, statement in enumerate(tree.body):
        is_docstring = place == 0 and ast.get_docstring(tree) is not None
        if not (is_docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")):
            break
        head = statement.end_lineno or 0
    return head


def _bound(tree: ast.Module) -> dict[str, str | None]:
    """Names that a file binds at module level, with the dotted path of imported ones."""
    found = {name: path for statement in tree.body for name, path in bound_names(statement).items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= dict.fromkeys(node.names)
    return found


def _blocks(text: str) -> tuple[list[str], bool]:
    """Complete Python (or untagged) code blocks, and whether the last block is unclosed."""
    found: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    # Not `splitlines`: it also splits at form feeds and Unicode separators, which do not end a line in Python.
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
    """Texts between a Python opening fence and a later closing fence; last opening first, then last closing first."""
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
