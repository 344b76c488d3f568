"""Texts that a prompt must not show, since they look like the prompt's own joints.

`agent.prompts.data` puts what strangers wrote between markers that the text cannot hold. That is enough for a reader who compares
digests; a model reads likenesses, and a tokenizer turns `<|im_end|>` into the end of a turn wherever it stands. No kernel needs such
text, so a source that holds any is judged like others, but never shown, and nothing in it is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Turns and thoughts of the chat formats in use, our own data markers, and our own headings at a line's beginning.
_MARKERS = re.compile(
    r"<\|[^|\n]{0,60}\|>|<[|｜][^\n]{0,60}[|｜]>|</?(?:think|tool_call|tool_response|s|bos|eos|pad|unk)>"
    r"|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|</?data\s|^\s*#{1,3} (?:Analysis|Design|Code|Measured before)\b",
    re.IGNORECASE | re.MULTILINE,
)


def holds_markers(source: str, special_tokens: Iterable[str] = ()) -> bool:
    """Whether a source holds anything that a prompt means by itself.

    Args:
        source: what a stranger wrote.
        special_tokens: the tokenizer's own, which it reads as such inside of a text, too.
    """
    if any(token and not token.isspace() and token in source for token in special_tokens):
        return True
    return "\x00" in source or "```" in source or "~~~" in source or bool(_MARKERS.search(source))
