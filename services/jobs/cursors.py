"""Cursors of lists: opaque text that marks the end of a page and that the client returns to get the next one.

A cursor is the base64 of a JSON list: the kind of list and the last row's position in it. It holds no secrets and grants no
access, so it is not signed. `decode` validates the type of every part before it reaches a query.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from services.errors import FieldError, Refused

Text = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.:-]{1,200}$")]
Number = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
Figure = Annotated[float, Field(strict=True, allow_inf_nan=False)]
BOARDS = TypeAdapter(tuple[Literal["boards"], Text, Number])
ENTRIES = TypeAdapter(tuple[Literal["entries"], Number, Figure, Number])


def encode(kind: str, *place: str | int | float) -> str:
    """Return the cursor of a position in lists of this kind."""
    text = json.dumps([kind, *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(kind: TypeAdapter[Any], cursor: str) -> tuple[Any, ...]:
    """Return the position that a cursor marks in a list of this kind.

    Raises:
        Refused: the text is not a cursor of such a list.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found: tuple[Any, ...] = kind.validate_json(text)
    except ValueError:
        raise refused() from None
    return found[1:]


def refused() -> Refused:
    """Return the error for text that is not a cursor."""
    return Refused([FieldError("after", "is not a cursor of this list; take `next` of the page before")])
