"""Sortable identifiers: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_LENGTH = 26


def new_id() -> str:
    """A new identifier of 26 lower-case characters; later ones sort after earlier ones (to the millisecond)."""
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    characters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "".join(reversed(characters))
