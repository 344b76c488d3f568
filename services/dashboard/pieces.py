"""Small pieces of pages that are written hundreds of times on each, as functions: a macro of a template costs ten times as much."""

from __future__ import annotations

from functools import lru_cache

from markupsafe import Markup

from services.dashboard import words
from services.dashboard.words import NOT_MEASURED, Word

# Some dozens of words exist; a text that is none of them may come out of a stored verdict.
_KEPT = 512
_UNMEASURED = Markup('<span class="unmeasured">{}</span>').format(NOT_MEASURED)


@lru_cache(_KEPT)
def chip(word: Word) -> Markup:
    """A word of the referee's or of a job's state, in its color."""
    return _named("chip", word)


@lru_cache(_KEPT)
def origin(name: str | None) -> Markup:
    """Who proposed a candidate."""
    return _named("origin", words.origin(name))


def figure(text: str) -> str:
    """A figure as text, which the page escapes, or that there is none."""
    return _UNMEASURED if text == NOT_MEASURED else text


def _named(kind: str, word: Word) -> Markup:
    title = Markup(' title="{}"').format(word.sentence) if word.sentence else ""
    return Markup('<span class="{} {}"{}>{}</span>').format(kind, word.tone, title, word.label)
