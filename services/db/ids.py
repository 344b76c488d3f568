"""Sortable identifiers: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_LENGTH = 26
_ID = re.compile(f"[{_ALPHABET}]{{{_LENGTH}}}")
_CANDIDATE_ID = re.compile(f"[{_ALPHABET}]{{{_LENGTH}}}\\.[0-9a-f]{{12}}")


def new_id() -> str:
    """Return a new identifier of 26 lower-case characters; identifiers sort by time, to the millisecond."""
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    characters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))


def is_id(text: str) -> bool:
    """Whether `text` has the form of an identifier; callers query the database only if it has."""
    return _ID.fullmatch(text) is not None


def is_candidate_id(text: str) -> bool:
    """Whether `text` has the form of a candidate id."""
    return _CANDIDATE_ID.fullmatch(text) is not None
