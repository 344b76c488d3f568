"""Messages sent to a model and its replies. Replies are untrusted text: parsed, stored and judged, never run here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: role "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True)
class Reply:
    """A model's answer.

    Attributes:
        text: the answer; may be empty.
        finish: "stop", "length" (cut off at the token limit), "too_long" (cut off by us), "refusal", another finish
            reason of the protocol, or "other".
        prompt_tokens: tokens of the request.
        completion_tokens: tokens of the answer, including reasoning.
        estimated: True if the server reported no usage and the token counts are estimated from the text length.
        model: the model name that the server reports.
        elapsed_s: seconds from request to answer, including retries.
        retries: how often the request was resent because the server was busy or failing.
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
    """Map the server's finish reason to a closed list, because it is stored and shown."""
    return "stop" if not word else str(word) if isinstance(word, str) and word in _FINISHES else "other"
