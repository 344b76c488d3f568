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
            max_tokens: completion limit of this request; defaults to `ModelChoice.max_tokens`.
            key: identifies this request, also when it is resent after a kill; a batch finds its answer by it.

        Raises:
            agent.errors.ProviderError: if the model cannot answer: the API refuses, fails after retries or breaks its
                protocol, or a file or library is missing. A constructor may raise it, too.
        """
        ...

    def close(self) -> None:
        """End requests in flight (they raise `ProviderError`) and free resources; do not call `complete` afterward."""
        ...
