"""Untrusted text without what a terminal obeys or a page draws in another order."""

from __future__ import annotations

import re

#: Control characters but tab and line break; marks and overrides of writing direction.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: str) -> str:
    """The text with a replacement character for each of these; tabs and line breaks stay (that of Windows as the usual one)."""
    return _OBEYED.sub(_INSTEAD, text.replace("\r\n", "\n"))


def plain_line(text: object) -> str:
    """The same as one line; empty for None."""
    return "" if text is None else plain(str(text)).replace("\n", " ").replace("\t", " ")
