"""Chat completions from any server that speaks OpenAI's protocol: OpenAI itself, vLLM, llama.cpp, Ollama, gateways."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import openai
from openai import OpenAI

from agent.errors import ProviderError
from agent.providers.base import Message, Reply
from agent.spec import ModelChoice

_CHARACTERS_PER_TOKEN = 4  # for servers that report no usage
_MAX_REPLY_CHARACTERS = 400_000
_MAX_ERROR_CHARACTERS = 500
_NO_KEY = "not-needed"  # local servers take anything, but the client insists on a value


class OpenAICompatible:
    """`agent.providers.base.Provider` over HTTP.

    The client retries 429, 5xx, timeouts and lost connections itself, with back-off.

    Args:
        choice: model, address, limits; its `api_key_variable` names the environment variable with the key.
        max_retries: retries per request.
    """

    def __init__(self, choice: ModelChoice, max_retries: int = 2) -> None:
        self._choice = choice
        self._key = os.environ.get(choice.api_key_variable) or _NO_KEY
        self._client = OpenAI(
            api_key=self._key, base_url=choice.base_url, timeout=choice.timeout_s, max_retries=max_retries
        )
        self._limit_name = "max_completion_tokens"

    def complete(self, messages: Sequence[Message]) -> Reply:
        """See `Provider.complete`."""
        began_s = time.monotonic()
        try:
            answer = self._create(messages)
        except openai.BadRequestError as error:
            # Older servers know the limit by its first name only.
            if self._limit_name not in str(error):
                raise self._failure(error) from None
            self._limit_name = "max_tokens"
            try:
                answer = self._create(messages)
            except openai.OpenAIError as second:
                raise self._failure(second) from None
        except openai.OpenAIError as error:
            # `from None`: the chained exception holds the request with its Authorization header.
            raise self._failure(error) from None
        except ValueError as error:
            raise ProviderError(f"the answer is not JSON: {self._clean(error)}", "protocol") from None
        return self._reply(answer, messages, time.monotonic() - began_s)

    def _create(self, messages: Sequence[Message]) -> Any:
        options: dict[str, Any] = {self._limit_name: self._choice.max_tokens}
        if self._choice.temperature is not None:
            options["temperature"] = self._choice.temperature
        return self._client.chat.completions.create(
            model=self._choice.model,
            messages=[{"role": message.role, "content": message.content} for message in messages],  # type: ignore[misc]
            **options,
        )

    def _reply(self, answer: Any, messages: Sequence[Message], elapsed_s: float) -> Reply:
        try:
            first = answer.choices[0]
            text = first.message.content or ""
            refusal = getattr(first.message, "refusal", None)
            finish = "refusal" if refusal else str(first.finish_reason or "stop")
            if not isinstance(text, str):
                raise TypeError(f"content is {type(text).__name__}")
        except (AttributeError, IndexError, TypeError) as error:
            raise ProviderError(f"the answer holds no message: {self._clean(error)}", "protocol") from None
        text = (text or str(refusal or ""))[:_MAX_REPLY_CHARACTERS]
        text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored
        prompt_tokens = _count(answer, "prompt_tokens")
        completion_tokens = _count(answer, "completion_tokens")
        estimated = prompt_tokens is None or completion_tokens is None
        if prompt_tokens is None:
            prompt_tokens = sum(len(message.content) for message in messages) // _CHARACTERS_PER_TOKEN
        if completion_tokens is None:
            completion_tokens = len(text) // _CHARACTERS_PER_TOKEN
        model = str(getattr(answer, "model", None) or self._choice.model)[:200]
        return Reply(text, finish, prompt_tokens, completion_tokens, estimated, model, elapsed_s)

    def _failure(self, error: openai.OpenAIError) -> ProviderError:
        return ProviderError(f"{type(error).__name__}: {self._clean(error)}", _kind(error))

    def _clean(self, error: Exception) -> str:
        """The error's text without the key, which some servers repeat."""
        text = " ".join(str(error).split())
        if self._key != _NO_KEY:
            text = text.replace(self._key, "***")
        return text[:_MAX_ERROR_CHARACTERS]


def _count(answer: Any, name: str) -> int | None:
    value = getattr(getattr(answer, "usage", None), name, None)
    return value if type(value) is int and value >= 0 else None


def _kind(error: openai.OpenAIError) -> str:
    if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
        return "authentication"
    if isinstance(error, openai.RateLimitError):
        return "rate_limit"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    if isinstance(error, (openai.InternalServerError, openai.APIConnectionError)):
        return "server"
    if isinstance(error, openai.APIResponseValidationError):
        return "protocol"
    return "request"
