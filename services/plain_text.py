"""Sanitizes untrusted text: replaces characters that control a terminal or reorder text on a page."""

from __future__ import annotations

import re

#: Control characters other than tab and newline; line separators; directional marks and overrides.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: str) -> str:
    """Replace each such character with U+FFFD; keep tabs and newlines, and turn CRLF into a newline."""
    return _OBEYED.sub(_INSTEAD, text.replace("\r\n", "\n"))


def plain_line(text: object) -> str:
    """As `plain`, on one line; empty for None."""
    return "" if text is None else plain(str(text)).replace("\n", " ").replace("\t", " ")
