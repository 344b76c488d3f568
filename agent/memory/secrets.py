"""Keeps keys out of memory. Nothing here ought to hold one; a model that echoes its key into a file is why this exists."""

from __future__ import annotations

import re
from collections.abc import Collection

# Forms by which providers make their keys recognizable, and headers that carry any.
_FORMS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\bBearer\s+[\w.~+/-]{16,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{6,}"
    r"|://[^\s/:@\"']+:[^\s/@\"']+@"
)
_LEAST_CHARACTERS = 6  # a shorter value would be found by chance


def holds_secret(text: str, known: Collection[str] = ()) -> bool:
    """Whether text holds one of the `known` secrets or something that has the form of a key."""
    return _FORMS.search(text) is not None or any(
        len(value) >= _LEAST_CHARACTERS and value in text for value in known
    )
