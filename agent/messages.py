"""Messages sent to a model and its replies. Replies are untrusted text: parsed, stored and judged, never run here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.redaction import redact


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


_CHARACTERS_PER_TOKEN = 4  # for servers that report no usage
_MAX_REPLY_CHARACTERS = 400_000
_MAX_TOKENS_REPORTED = 2**40
_FINISHES = frozenset({"stop", "length", "content_filter", "tool_calls", "function_call"})


def finish_of(word: object) -> str:
    """Map the server's finish reason to a closed list, because it is stored and shown."""
    return "stop" if not word else str(word) if isinstance(word, str) and word in _FINISHES else "other"


def reply_of(
    text: str,
    finish: str,
    messages: Sequence[Message],
    tokens: tuple[object, object],
    model: object,
    elapsed_s: float,
    secrets: Collection[str],
    retries: int = 0,
) -> Reply:
    """A reply from what a server sent, none of which is trusted.

    Args:
        text: the answer.
        finish: see `Reply`.
        messages: the conversation that it answers.
        tokens: of the request and of the answer, as reported; what is no plausible count is estimated from the text length.
        model: the reported model name.
        elapsed_s: seconds from request to answer.
        secrets: masked in the text and the name.
        retries: how often the request was resent.
    """
    texts = ("".join(message.content for message in messages), text)
    counts = [
        count if type(count) is int and 0 <= count <= _MAX_TOKENS_REPORTED else None for count in tokens
    ]
    prompt_tokens, completion_tokens = (
        len(one) // _CHARACTERS_PER_TOKEN if count is None else count
        for one, count in zip(texts, counts, strict=True)
    )
    # Mask before truncating: a truncated key would not be found. Lone surrogates cannot be stored.
    text = redact(text.encode("utf-8", "replace").decode(), secrets)
    if len(text) > _MAX_REPLY_CHARACTERS:
        text, finish = text[:_MAX_REPLY_CHARACTERS], "too_long"
    name = redact(str(model), secrets)[:200].encode("utf-8", "replace").decode()
    return Reply(text, finish, prompt_tokens, completion_tokens, None in counts, name, elapsed_s, retries)
