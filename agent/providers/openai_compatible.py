"""Chat completions from any server that implements OpenAI's API: OpenAI, vLLM, llama.cpp, Ollama, gateways."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from openai import OpenAI

from agent.errors import ProviderError
from agent.messages import Message, Reply, finish_of, reply_of
from agent.providers.limits import MAX_BODY_BYTES, BodyTooLong, LimitedTransport
from agent.redaction import known_secrets, redact, redact_message
from agent.spec import ModelChoice

_DEFAULT_ADDRESS = "https://api.openai.com/v1"  # the openai client's default
_MAX_ERROR_CHARACTERS = 500
_MAX_WAIT_S = 60.0  # between two tries; also caps `Retry-After`
#: Error text by which servers report that a prompt exceeds the context, if they send no error code for it.
_NO_ROOM = re.compile(r"context (length|window|size)|maximum context|prompt is too long", re.IGNORECASE)
#: The same, or that an answer may not be as long as was asked for.
_TOO_MANY = re.compile(
    rf"{_NO_ROOM.pattern}|max\w*_tokens.{{0,80}}(too large|at most|less than|maximum)", re.IGNORECASE
)
_LEAST_TOKENS = 4096
_FIRST_WAIT_S = 0.5
_NO_KEY = "not-needed"  # local servers accept anything, but the client requires a value
_RETRIED = frozenset({"rate_limit", "server"})
"""Kinds of failure that are retried: the server generated and billed nothing, and the next try may succeed."""


class OpenAICompatible:
    """`agent.providers.registry.Provider` over HTTP.

    Answers are streamed, so that a gateway between does not take a model that writes for minutes for a dead one; a server that does not
    stream is understood, too. Retries 429, 5xx and refused connections after the delay in `Retry-After`; never retries a timeout or
    an answer that broke off, which may have been billed.

    Args:
        choice: model, address and limits; its `api_key_variable` names the environment variable with the key.
        max_retries: retries per request.
    """

    def __init__(self, choice: ModelChoice, max_retries: int = 2) -> None:
        self._choice = choice
        self._key = os.environ.get(choice.api_key_variable) or _NO_KEY
        self._secrets = known_secrets([self._key] if self._key != _NO_KEY else [])
        self._max_retries = max_retries
        self._closing = threading.Event()
        address = choice.base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_ADDRESS
        http_client = httpx.Client(
            transport=LimitedTransport(address, choice.timeout_s), timeout=choice.timeout_s
        )
        self._client = OpenAI(
            api_key=self._key,
            base_url=address,
            timeout=choice.timeout_s,
            max_retries=0,
            http_client=http_client,  # type: ignore[arg-type]  # typed for the newest httpx, accepts either
        )
        self._limit_name = "max_completion_tokens"
        self._most_tokens = choice.max_tokens  # that the server allows
        self._stream_options: dict[str, Any] = {"stream_options": {"include_usage": True}}

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """See `Provider.complete`."""
        began_s = time.monotonic()
        clean = [Message(message.role, redact(message.content, self._secrets)) for message in messages]
        retries = 0
        while True:
            try:
                answer = self._send(clean, max_tokens or self._choice.max_tokens, key)
                return self._reply(answer, clean, time.monotonic() - began_s, retries)
            except _Failed as failed:
                wait_s = _wait_s(failed.response, retries)
                late = time.monotonic() + wait_s - began_s > self._choice.timeout_s
                if failed.kind not in _RETRIED or retries >= self._max_retries or late:
                    # `from None`: the chained exception contains the request with its Authorization header.
                    raise ProviderError(str(failed), failed.kind) from None
                retries += 1
                if self._closing.wait(wait_s):
                    raise ProviderError("the job ended while the request waited", "server") from None

    def close(self) -> None:
        """See `Provider.close`."""
        self._closing.set()
        self._client.close()

    def _send(self, messages: Sequence[Message], max_tokens: int, key: str | None) -> _Answer:
        limit = min(max_tokens, self._most_tokens)
        while True:
            try:
                answer = self._create(messages, limit, key)
                self._most_tokens = limit if limit < max_tokens else self._most_tokens
                return answer
            except openai.BadRequestError as error:
                refusal = str(error)
                if self._stream_options and "stream_options" in refusal:
                    self._stream_options = {}
                elif limit > _LEAST_TOKENS and _TOO_MANY.search(refusal):
                    limit //= 2
                elif self._limit_name in refusal and self._limit_name != "max_tokens":
                    self._limit_name = "max_tokens"  # older servers know only this name
                else:
                    raise self._failed(error) from None
            except openai.OpenAIError as error:
                raise self._failed(error) from None
            except httpx.TransportError as error:  # while the answer was read
                text = f"{type(error).__name__}: {self._clean(str(error))}"
                raise _Failed(text, _kind_of_break(error), None) from None
            except (ValueError, RecursionError) as error:
                raise _Failed(
                    f"the answer is not JSON: {self._clean(str(error))}", "protocol", None
                ) from None

    def _failed(self, error: openai.OpenAIError) -> _Failed:
        text = f"{type(error).__name__}: {self._clean(_words(error))}"
        return _Failed(text, _kind(error), getattr(error, "response", None))

    def _create(self, messages: Sequence[Message], max_tokens: int, key: str | None) -> _Answer:
        options: dict[str, Any] = {self._limit_name: max_tokens, **self._stream_options}
        if self._choice.temperature is not None:
            options["temperature"] = self._choice.temperature
        if key is not None:
            options["extra_headers"] = {"Idempotency-Key": key}
        raw = self._client.chat.completions.with_raw_response.create(
            model=self._choice.model,
            messages=[{"role": message.role, "content": message.content} for message in messages],  # type: ignore[misc]
            stream=True,
            **options,
        )
        try:
            if "text/event-stream" in raw.headers.get("Content-Type", ""):
                return _joined(raw.parse())
            return _whole(json.loads(raw.http_response.read()))
        finally:
            raw.http_response.close()

    def _reply(self, answer: _Answer, messages: Sequence[Message], elapsed_s: float, retries: int) -> Reply:
        finish = "refusal" if answer.refusal else finish_of(answer.finish)
        model = answer.model or self._choice.model
        text = answer.text or answer.refusal
        return reply_of(text, finish, messages, answer.tokens, model, elapsed_s, self._secrets, retries)

    def _clean(self, text: str) -> str:
        """An error's text in one line, without the key, which some servers echo."""
        text = redact_message(" ".join(text.split()), self._secrets)
        return text.encode("utf-8", "replace").decode()[:_MAX_ERROR_CHARACTERS]


@dataclass
class _Answer:
    """What of an answer is used; ``tokens`` of prompt and answer are as reported, if at all."""

    text: str = ""
    refusal: str = ""
    finish: Any = None
    tokens: tuple[Any, Any] = (None, None)
    model: Any = None


def _whole(body: Any) -> _Answer:
    """An answer in one piece.

    Raises:
        _Failed: it holds no message.
    """
    try:
        first = body["choices"][0]
        text, refusal = first["message"].get("content") or "", first["message"].get("refusal") or ""
        if not isinstance(text, str):
            raise TypeError(f"content is {type(text).__name__}")
        usage = body.get("usage") or {}
        tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        return _Answer(text, str(refusal), first.get("finish_reason"), tokens, body.get("model"))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _Failed(f"the answer holds no message: {type(error).__name__}", "protocol", None) from None


def _joined(chunks: Iterable[Any]) -> _Answer:
    """An answer in pieces.

    Raises:
        _Failed: it breaks off, or is too long.
    """
    answer, pieces, length = _Answer(), list[str](), 0
    try:
        for chunk in chunks:
            answer.model = answer.model or getattr(chunk, "model", None)
            if (usage := getattr(chunk, "usage", None)) is not None:
                answer.tokens = (
                    getattr(usage, "prompt_tokens", None),
                    getattr(usage, "completion_tokens", None),
                )
            for choice in (getattr(chunk, "choices", None) or ())[:1]:
                delta = getattr(choice, "delta", None)
                text, refusal = getattr(delta, "content", None) or "", getattr(delta, "refusal", None) or ""
                pieces.append(text)
                answer.refusal += refusal
                length += len(text) + len(refusal)
                answer.finish = getattr(choice, "finish_reason", None) or answer.finish
            if length > MAX_BODY_BYTES:
                raise _Failed(f"the answer is longer than {MAX_BODY_BYTES} bytes", "too_long", None)
    except openai.APIConnectionError:
        raise  # `_kind` tells a timeout from a cut
    except openai.APIError as error:  # an event that tells an error: what came before may have been billed
        raise _Failed(f"the answer broke off: {error}", "cut", None) from None
    except (AttributeError, TypeError) as error:
        raise _Failed(
            f"a piece of the answer holds no text: {type(error).__name__}", "protocol", None
        ) from None
    if answer.finish is None:
        raise _Failed("the answer broke off: it ended without a reason", "cut", None)
    answer.text = "".join(pieces)
    return answer


class _Failed(Exception):
    def __init__(self, message: str, kind: str, response: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.response = response


def _wait_s(response: Any, retries: int) -> float:
    """Seconds until the next try: the value of `Retry-After`, else exponential backoff."""
    try:
        asked_s = float(response.headers.get("Retry-After"))
    except (AttributeError, TypeError, ValueError):
        asked_s = -1.0
    if not 0 <= asked_s < float("inf"):
        asked_s = _FIRST_WAIT_S * 2**retries
    return min(asked_s, _MAX_WAIT_S)


def _words(error: openai.OpenAIError) -> str:
    cause = error.__cause__
    return f"{error} {cause}" if isinstance(error, openai.APIConnectionError) and cause else str(error)


def _kind_of_break(error: httpx.TransportError) -> str:
    if isinstance(error, BodyTooLong):
        return "too_long"
    return "timeout" if isinstance(error, httpx.TimeoutException) else "cut"


def _kind(error: openai.OpenAIError) -> str:
    if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
        return "authentication"
    if isinstance(error, openai.RateLimitError):
        return "rate_limit"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    if isinstance(error, openai.APIConnectionError):
        # Only a connection that was never established certainly cost nothing.
        if isinstance(error.__cause__, BodyTooLong):
            return "too_long"
        return "server" if isinstance(error.__cause__, httpx.ConnectError) else "cut"
    if isinstance(error, openai.InternalServerError):
        return "server"
    if isinstance(error, openai.APIResponseValidationError):
        return "protocol"
    if isinstance(error, openai.BadRequestError) and (
        error.code == "context_length_exceeded" or _NO_ROOM.search(str(error))
    ):
        return "no_room"
    return "request"
