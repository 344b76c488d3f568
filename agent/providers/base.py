"""The interface of a provider of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent.messages import Message, Reply


class Provider(Protocol):
    """Completes conversations; safe to call from several threads."""

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """One completion.

        Args:
            messages: the conversation.
            max_tokens: completion limit of this request, the model's own when left out.
            key: names this request, the same when it is sent again after a kill; a batch finds its answer by it.

        Raises:
            agent.errors.ProviderError: when the API refuses, fails after retries, or breaks its protocol.
        """
        ...

    def close(self) -> None:
        """Free what is held, and end what is under way; `complete` may not be called any more."""
        ...
