"""Which file answers for a model. A new kind of provider is a new file and a line here."""

from __future__ import annotations

from agent.errors import ProviderError
from agent.providers.base import Provider
from agent.spec import ModelChoice

PROVIDERS = ("openai", "policy", "batch")


def provider_for(choice: ModelChoice) -> Provider:
    """The provider of a model; heavy libraries are imported only here.

    Raises:
        ProviderError: if there is no such provider, or what it needs is not installed.
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
