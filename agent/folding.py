"""Candidates without the text of the library's kernels, as models see them.

The text has up to 100,000 characters in a file that calls the library: 25,000 tokens in each prompt, and beyond what an answer can
repeat. `agent.extraction.unfolded` puts it back.
"""

from __future__ import annotations

import re

#: The lines around the text in a candidate.
BEGIN = "# The library's kernels begin here."
END = "# The library's kernels end here."
#: The line in its place.
PLACE = "# (The text of the library's kernels is here.)"
_REGION = re.compile(f"^{re.escape(BEGIN)}\n.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)


def folded(source: str) -> str:
    """A candidate with one line in place of the library's text."""
    return _REGION.sub(PLACE, source)
