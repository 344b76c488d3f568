"""Whether a proposal is new: by normalized text, and by how many of its tokens in context another one shares.

Structure counts, not spelling: comments, docstrings, layout and the names a model gives its variables do not make a kernel
new. Python alone is parsed; what stands in strings (C++, CUDA) is cut into words as it is.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

#: Above this share of common token triples a file is no new idea. In a kernel of 60 lines another block size alone stays
#: above it: sweeping numbers is the machine's work (`TUNABLES`). A repair may be one character, so there only the same
#: normalized text is a repetition.
SAME = 0.97
#: A job's candidates are each compared with all others: without their marks a search spends its time on cutting up texts.
_KEPT = 256
_KEPT_CHARACTERS = 60_000
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
_C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SKIPPED = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER})


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
    """The file without comments, docstrings, layout and its own choice of variable names."""
    return " ".join(_tokens(source))


def fingerprint(source: str) -> str:
    """Hex digest of the normalized text."""
    return _digest(_tokens(source))


def _digest(tokens: list[str]) -> str:
    return hashlib.sha256("\x00".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()


def likeness(source: str, tried: Mapping[str, str]) -> Likeness:
    """The most similar among what was tried.

    Args:
        source: the proposal.
        tried: source by sha256.
    """
    mine, my_triples = _marks(source)
    best = Likeness("", 0.0)
    for sha256, other in tried.items():
        theirs, their_triples = _marks(other)
        share = 1.0 if mine == theirs else min(_jaccard(my_triples, their_triples), 0.9999)
        if share > best.share:
            best = Likeness(sha256, share)
    return best


def _marks(source: str) -> tuple[str, frozenset[int]]:
    """What a file is compared by: its fingerprint and its token triples, as numbers of this process."""
    return (_kept_marks if len(source) <= _KEPT_CHARACTERS else _new_marks)(source)


def _new_marks(source: str) -> tuple[str, frozenset[int]]:
    tokens = _tokens(source)
    return _digest(tokens), frozenset(hash(triple) for triple in _triples(tokens))


_kept_marks = lru_cache(maxsize=_KEPT)(_new_marks)


def _tokens(source: str) -> list[str]:
    """Tokens in order, names numbered by first use unless they are a keyword or follow a dot or an import."""
    raw: list[tuple[str, bool]] = []  # text, whether it is a name of the file's own choice
    try:
        previous = ""
        statement_begins = True
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.STRING and statement_begins:
                continue  # a docstring
            if token.type in _SKIPPED:
                statement_begins = statement_begins or token.type == tokenize.NEWLINE
                continue
            if token.type in (tokenize.INDENT, tokenize.DEDENT):
                raw.append(("<in>" if token.type == tokenize.INDENT else "<out>", False))
                statement_begins = True
                continue
            statement_begins = False
            if token.type == tokenize.STRING:
                raw += [(word, False) for word in _WORD.findall(_C_COMMENT.sub(" ", token.string))]
            else:
                own = token.type == tokenize.NAME and not keyword.iskeyword(token.string) and previous != "."
                raw.append((token.string, own))
            previous = token.string
    except (tokenize.TokenError, SyntaxError, ValueError):  # not Python, or not whole
        raw = [(word, False) for word in _WORD.findall(_C_COMMENT.sub(" ", source))]
    own_names = _assigned(raw)
    numbers: dict[str, str] = {}
    return [
        numbers.setdefault(text, f"v{len(numbers)}") if own and text in own_names else text
        for text, own in raw
    ]


def _assigned(raw: list[tuple[str, bool]]) -> set[str]:
    """Names that the file binds with `=` itself: renaming those changes nothing; `tl` or `torch` are others' names."""
    found = set()
    depth = 0
    for (text, own), (following, _) in itertools.pairwise(raw):
        depth += (text in "([{") - (text in ")]}")
        if (
            own and following == "=" and depth == 0
        ):  # deeper it is a keyword argument: num_warps=4 is not num_stages=4
            found.add(text)
    return found


def _triples(tokens: list[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[place : place + 3]) for place in range(max(1, len(tokens) - 2))}


def _jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common) if one or other else 1.0
