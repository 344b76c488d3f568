"""The interface of completion providers, and the provider of a model. To add one, add a file, its name and a branch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent.errors import ProviderError
from agent.messages import Message, Reply
from agent.spec import ModelChoice

PROVIDERS = ("openai", "policy", "batch")


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


def provider_for(choice: ModelChoice) -> Provider:
    """Make the provider of a model, importing heavy libraries only when needed.

    Raises:
        ProviderError: if the provider is unknown or its dependencies are not installed.
    """
    if choice.provider == "openai":
        from agent.providers.openai_compatible import OpenAICompatible

        return OpenAICompatible(choice)
    if choice.provider == "policy":
        from agent.providers.policy import LocalPolicy

        return LocalPolicy(choice)
    if choice.provider == "batch":
        from agent.providers.batch import BatchFiles

        return BatchFiles(choice)
    known = ", ".join(PROVIDERS)
    raise ProviderError(f"provider {choice.provider!r} is unknown; it is one of {known}", "request")
