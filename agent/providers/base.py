"""The interface of a completion provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent.messages import Message, Reply


class Provider(Protocol):
    """Completes conversations; thread-safe."""

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """Request one completion.

        Args:
            messages: the conversation.
            max_tokens: completion limit of this request; defaults to the model's own.
            key: identifies this request, also when it is resent after a kill; a batch finds its answer by it.

        Raises:
            agent.errors.ProviderError: if the API refuses, fails after retries or breaks its protocol.
        """
        ...

    def close(self) -> None:
        """End requests in flight and free resources; do not call `complete` afterward."""
        ...
