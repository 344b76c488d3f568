"""Whether a proposal is new: by its normal form, and by how many of that form's words in context another one shares.

Structure counts, not spelling: see :mod:`agent.strategy.normal_form`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from agent.strategy.normal_form import normal_form

#: Above this share of common token triples a file is no new idea. In a kernel of 60 lines another block size alone stays
#: above it: sweeping numbers is the machine's work (`TUNABLES`). A repair may be one character, so there only the same
#: normalized text is a repetition.
SAME = 0.97
#: A job's candidates are each compared with all others: without their marks a search spends its time on cutting up texts.
_KEPT = 256
_KEPT_CHARACTERS = 60_000
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")


@dataclass(frozen=True)
class Likeness:
    """The earlier candidate that is most alike.

    Attributes:
        sha256: its identity, "" when there was none to compare with.
        share: 1 for the same normalized text, else the Jaccard index of token triples.
    """

    sha256: str
    share: float

    def repeats(self, mode: str) -> bool:
        """Whether a proposal of mode "speed" or "repair" says nothing new."""
        return self.share >= (1.0 if mode == "repair" else SAME)


def normalized(source: str) -> str:
    """The normal form of a file; of what is no Python its words."""
    form = normal_form(source)
    return " ".join(_words(source)) if form is None else form


def fingerprint(source: str) -> str:
    """Hex digest of the normalized text."""
    return _digest(normalized(source))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def likeness(source: str, tried: Mapping[str, str]) -> Likeness:
    """The most similar among what was tried.

    Args:
        source: the proposal.
        tried: source by sha256.
    """
    mine, my_triples = marks(source)
    best = Likeness("", 0.0)
    for sha256, other in tried.items():
        theirs, their_triples = marks(other)
        share = 1.0 if mine == theirs else min(_jaccard(my_triples, their_triples), 0.9999)
        if share > best.share:
            best = Likeness(sha256, share)
    return best


def marks(source: str) -> tuple[str, frozenset[int]]:
    """What a file is compared by: its fingerprint and its token triples, as numbers of this process."""
    return (_kept_marks if len(source) <= _KEPT_CHARACTERS else _new_marks)(source)


def _new_marks(source: str) -> tuple[str, frozenset[int]]:
    text = normalized(source)
    return _digest(text), frozenset(hash(triple) for triple in _triples(_words(text)))


_kept_marks = lru_cache(maxsize=_KEPT)(_new_marks)


def _words(text: str) -> list[str]:
    """Names, numbers and signs, inside strings too."""
    return _WORD.findall(text.replace("\\n", "\n"))  # a printed text has its lines' ends as two signs


def _triples(tokens: list[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[place : place + 3]) for place in range(max(1, len(tokens) - 2))}


def _jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common) if one or other else 1.0
