"""Maps a model to its provider. To add a provider, add a file, its name and a branch here."""

from __future__ import annotations

from agent.errors import ProviderError
from agent.providers.base import Provider
from agent.spec import ModelChoice

PROVIDERS = ("openai", "policy", "batch")


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
