"""Cursors of lists: where a page ends, as text that a client hands back unread.

A cursor is base 64 of a JSON list: the kind of list and the last row's place in it. It holds nothing secret and gives no
access, so it is not signed; whatever comes back is checked to the type of every part before it reaches a query.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any

from services.errors import FieldError, Refused

_LARGEST = 2**31 - 1
_TEXT = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


def encode(kind: str, *place: str | int | float) -> str:
    """The cursor of a place in lists of this kind."""
    text = json.dumps([kind, *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(kind: str, cursor: str, *types: type) -> tuple[Any, ...]:
    """The place, with a value of each type.

    Raises:
        Refused: this is no cursor of such a list.
    """
    values = _values(cursor)
    if values is None or len(values) != len(types) + 1 or values[0] != kind:
        raise refused()
    if not all(_fits(value, kind_of) for value, kind_of in zip(values[1:], types, strict=True)):
        raise refused()
    return tuple(values[1:])


def refused(field: str = "after") -> Refused:
    """What is answered to something that is no cursor."""
    return Refused([FieldError(field, "is not a cursor of this list; take `next` of the page before")])


def _values(cursor: str) -> list[Any] | None:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        values = json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return values if isinstance(values, list) else None


def _fits(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and bool(_TEXT.fullmatch(value))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return isinstance(value, float) and math.isfinite(value)
