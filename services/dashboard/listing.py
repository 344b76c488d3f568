"""Renders source and diffs as lines of escaped HTML; never runs or parses the source as code."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from markupsafe import Markup, escape
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from services.plain_text import plain

# Beyond these sizes a page would be slow to render and unreadable; the raw file is one click away.
HIGHLIGHT_LIMIT_CHARACTERS = 200_000
DIFF_LIMIT_LINES = 5_000
CONTEXT_LINES = 3
# Default display limits, which keep pages fast to load.
SHOWN_LINES, SHOWN_CHARACTERS = 300, 60_000
# Sources are untrusted. Some texts take Pygments a minute (it searches for a missing terminator from every position) and
# difflib hours (a line that occurs hundreds of times on both sides), and each page view occupies a thread.
HIGHLIGHT_LIMIT_CPU_S = 2.0
DIFF_LIMIT_PAIRS = 100
# Cached sources: they never change, pages re-render every few seconds, and Pygments takes most of that time.
_KEPT = 128


class _TookTooLong(Exception):
    pass


class _Lexer(PythonLexer):  # type: ignore[misc]  # Pygments carries no types
    """The Python lexer with a CPU time limit."""

    def get_tokens_unprocessed(self, *arguments: Any) -> Iterator[tuple[int, Any, str]]:
        """See Pygments.

        Raises:
            _TookTooLong: the text exceeds the CPU time limit.
        """
        ends_at = time.thread_time() + HIGHLIGHT_LIMIT_CPU_S
        for token in super().get_tokens_unprocessed(*arguments):
            if time.thread_time() > ends_at:
                raise _TookTooLong
            yield token


@dataclass(frozen=True)
class DiffLine:
    """One line of a unified diff. Line numbers are 1-based, ``None`` if that side lacks the line."""

    kind: str
    old: int | None
    new: int | None
    html: Markup


Line = TypeVar("Line", Markup, DiffLine)


def beginning(lines: Sequence[Line], *, whole: bool = False) -> tuple[list[Line], int]:
    """Return the lines that fit a page and the number omitted; all lines if `whole`."""
    shown: list[Line] = []
    left = SHOWN_CHARACTERS
    for line in lines:
        left -= len(line.html if isinstance(line, DiffLine) else line)
        if not whole and (left < 0 or len(shown) == SHOWN_LINES):
            break
        shown.append(line)
    return shown, len(lines) - len(shown)


def highlighted_lines(source: str) -> list[Markup]:
    """The source as one safe HTML fragment per line."""
    return list(_highlighted(source))


@lru_cache(maxsize=_KEPT)
def _highlighted(source: str) -> Sequence[Markup]:
    plain = _lines(source)
    if len(source) > HIGHLIGHT_LIMIT_CHARACTERS:
        return [escape(line) for line in plain]
    lexer = _Lexer(stripnl=False, ensurenl=False)
    try:
        rendered = str(highlight("\n".join(plain), lexer, HtmlFormatter(nowrap=True))).split("\n")
    except _TookTooLong:
        return [escape(line) for line in plain]
    if len(rendered) > len(plain):
        rendered = rendered[: len(plain)]
    if len(rendered) != len(plain):
        return [escape(line) for line in plain]
    # Pygments escapes every token and closes its spans at line ends.
    return [Markup(line) for line in rendered]  # noqa: S704


def unified(old_source: str, new_source: str) -> list[DiffLine] | None:
    """The difference between two sources, colored line by line.

    Returns:
        Lines of kind ``same``, ``added``, ``removed`` or ``gap`` (skipped lines; its numbers are where the diff resumes), or
        ``None`` if the sources are too long to compare.
    """
    old, new = _lines(old_source), _lines(new_source)
    if len(old) + len(new) > DIFF_LIMIT_LINES:
        return None
    old_html, new_html = highlighted_lines(old_source), highlighted_lines(new_source)
    # Blank lines must not anchor the diff: unrelated files share only those and would be interleaved. Neither may lines that
    # are frequent on both sides: difflib compares all their pairs at every step.
    often_old, often_new = Counter(old), Counter(new)

    def is_no_anchor(line: str) -> bool:
        return not line.strip() or often_old[line] * often_new[line] > DIFF_LIMIT_PAIRS

    matcher = difflib.SequenceMatcher(is_no_anchor, old, new, autojunk=False)
    result: list[DiffLine] = []
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        first = group[0]
        if first[1] > 0 or first[3] > 0:
            result.append(DiffLine("gap", first[1] + 1, first[3] + 1, Markup("")))
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                pairs = zip(range(old_from, old_to), range(new_from, new_to), strict=True)
                result.extend(DiffLine("same", i + 1, j + 1, new_html[j]) for i, j in pairs)
                continue
            result.extend(DiffLine("removed", i + 1, None, old_html[i]) for i in range(old_from, old_to))
            result.extend(DiffLine("added", None, j + 1, new_html[j]) for j in range(new_from, new_to))
    return result


def _lines(source: str) -> list[str]:
    # str.splitlines also splits at form feeds and Unicode separators, which editors show inside a line.
    return plain(source.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")).split("\n")
