"""What is sent to a model and what comes back. Replies are untrusted text: they are parsed, stored and judged, never run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: role "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Attributes:
        text: the answer; may be empty.
        finish: "stop", "length" (cut off at the token limit), "too_long" (cut off by us), "refusal", another of
            the protocol's words, or "other".
        prompt_tokens: tokens of the request.
        completion_tokens: tokens of the answer, reasoning included.
        estimated: True when the server reported no usage and the tokens are a guess from the length.
        model: the name the server gives the model.
        elapsed_s: seconds from request to answer, retries included.
        retries: how often the request was sent again because the server was busy or out of order.
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool
    model: str
    elapsed_s: float
    retries: int = 0


_FINISHES = frozenset({"stop", "length", "content_filter", "tool_calls", "function_call"})


def finish_of(word: object) -> str:
    """The server's word for how an answer ended, from a closed list: it is stored and shown."""
    return "stop" if not word else str(word) if isinstance(word, str) and word in _FINISHES else "other"
