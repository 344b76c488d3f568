"""Decides whether a proposal is new, by its normal form and the share of token triples it has in common with earlier ones.

Structure counts, not spelling: see :mod:`agent.strategy.normal_form`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from agent.strategy.normal_form import normal_form

#: At or above this share of common token triples, a file is not a new idea. In a kernel of 60 lines, changing only the block
#: size stays above it: sweeping numbers is the tuner's job (`TUNABLES`). A repair may change one character, so a repair is a
#: repetition only if its normalized text is identical.
SAME = 0.97
#: Cache size. Each candidate is compared with all others; without the cache a search would spend its time tokenizing.
_KEPT = 256
_KEPT_CHARACTERS = 60_000
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")


@dataclass(frozen=True)
class Likeness:
    """The most similar earlier candidate.

    Attributes:
        sha256: its identity; "" if no earlier candidate has anything in common.
        share: 1 for identical normalized text, else the Jaccard index of token triples.
    """

    sha256: str
    share: float

    def repeats(self, mode: str) -> bool:
        """Whether a proposal in mode "speed" or "repair" is a repetition."""
        return self.share >= (1.0 if mode == "repair" else SAME)


def normalized(source: str) -> str:
    """The normal form of a file; its tokens, joined by spaces, if there is none."""
    form = normal_form(source)
    return " ".join(_words(source)) if form is None else form


def fingerprint(source: str) -> str:
    """Hex digest of the normalized text."""
    return _digest(normalized(source))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def likeness(source: str, tried: Mapping[str, str]) -> Likeness:
    """Find the most similar earlier candidate.

    Args:
        source: the proposal.
        tried: sources of earlier candidates, by sha256.
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
    """The comparison keys of a file: its fingerprint and its token triples, as hashes valid only in this process."""
    return (_kept_marks if len(source) <= _KEPT_CHARACTERS else _new_marks)(source)


def _new_marks(source: str) -> tuple[str, frozenset[int]]:
    text = normalized(source)
    return _digest(text), frozenset(hash(triple) for triple in _triples(_words(text)))


_kept_marks = lru_cache(maxsize=_KEPT)(_new_marks)


def _words(text: str) -> list[str]:
    """Names, numbers and symbols, including those inside strings."""
    return _WORD.findall(text.replace("\\n", "\n"))  # string literals spell a newline as two characters


def _triples(tokens: list[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[place : place + 3]) for place in range(max(1, len(tokens) - 2))}


def _jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common) if one or other else 1.0
